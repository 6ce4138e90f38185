// A proxy in front of one shard, for every method and stream, that lets a test look at, alter,
// drop, hold back and cut what passes. To the router and to the other shards it is the shard.
//
// Thread-safe. Hooks run on gRPC's threads, one at a time per stream and direction, under no lock;
// they must not block.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "kvmesh/v1/shard.pb.h"

namespace kvmesh::testing {

enum class Passage {
  kPass,
  kDrop,  // this message alone
  kHold,  // until Release: this message and all that is not yet sent that way
  kCut,   // drop it and break the stream on both sides
};

struct ProxyHooks {
  std::function<Passage(v1::ForwardRequest&)> on_frame;
  std::function<Passage(v1::ForwardResponse&)> on_answer;
  std::function<void(v1::WatchResponse&)> on_watch;
};

// Removes token_id from every answer: an old tail.
ProxyHooks WithoutTokenIds();
// Clears supports_kv_cache in Watch: a shard whose layers cannot run with a cache.
ProxyHooks WithoutKvCache();

class ForwardProxy final : private grpc::CallbackGenericService {
 public:
  // Unavailable: `listen` cannot be bound.
  static absl::StatusOr<std::unique_ptr<ForwardProxy>> Start(const std::string& listen,
                                                             const std::string& target,
                                                             ProxyHooks hooks);
  ~ForwardProxy() override;

  int port() const { return port_; }
  std::string address() const;
  // Messages held back go on.
  void Release();
  // Breaks every stream that passes now. Watch streams too if `also_watch`.
  void CutStreams(bool also_watch);
  // While down, calls are refused as if nothing listened.
  void SetDown(bool down);

 private:
  class Relay;
  friend class Relay;

  ForwardProxy(const std::string& target, ProxyHooks hooks);
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;
  void Forget(Relay* relay);
  std::set<std::shared_ptr<Relay>> Relays();

  const ProxyHooks hooks_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;

  Mutex mutex_;
  bool down_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<Relay>> relays_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::testing
