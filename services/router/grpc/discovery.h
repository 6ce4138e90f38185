// The shards that are there: resolves the names of --shards, holds one channel and one Watch stream
// per address, and knows what each shard said last. A shard whose stream ended, or that missed
// three heartbeats, is gone until it speaks again.
//
// Thread-safe. The resolver has a thread of its own; Tick is called by the router's ticker. The
// destructor ends all streams.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rpc/channel.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "services/router/core/route_planner.h"
#include "services/router/grpc/resolver.h"

namespace kvmesh::router {

struct DiscoveryOptions {
  std::vector<std::string> names;  // host:port, each of which may be several addresses
  absl::Duration resolve_interval = absl::Seconds(2);
  absl::Duration heartbeat = absl::Seconds(2);
  // All addresses of a name now; called again and again, in a thread of its own.
  std::function<absl::StatusOr<std::vector<std::string>>(const std::string& name)> resolve =
      Resolve;
};

// One address, whether its shard answers or not.
struct ShardView {
  std::string address;
  bool connected = false;
  ShardFacts facts;   // the last ones; meaningless until it was connected once
  std::string error;  // why it is not connected
};

class Discovery {
 public:
  // `tls`: null for plaintext.
  Discovery(DiscoveryOptions options, std::shared_ptr<rpc::TlsIdentity> tls, const Clock& clock);
  ~Discovery();
  Discovery(const Discovery&) = delete;
  Discovery& operator=(const Discovery&) = delete;

  // Shards that are there, by address; a process that two addresses reach is listed once.
  std::vector<ShardFacts> Facts() const;
  std::vector<ShardView> Views() const;
  // Null: no shard of this address is known (any more).
  std::shared_ptr<v1::ShardService::Stub> StubFor(const std::string& address) const;

  // Looks for missed heartbeats and starts ended Watch streams again.
  void Tick();
  // Whether shards came, went, or changed in what they serve since the last call.
  bool TakeChanged() { return changed_.exchange(false); }

 private:
  class Watch;
  struct Shard {
    // Shared with calls in flight, which may outlast the shard's entry.
    std::shared_ptr<v1::ShardService::Stub> stub;
    Watch* watch = nullptr;  // owns itself; null while none runs
    ShardView view;
    MonoTime last_heard;
    MonoTime retry_at;
  };

  void ResolveLoop();
  void ApplyAddresses(const std::vector<std::string>& addresses);
  void ForgetAllBut(const std::vector<std::string>& addresses)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // To be started by the caller once the lock is released.
  Watch* NewWatch(Shard& shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnFacts(Watch* watch, absl::StatusOr<ShardFacts> facts);
  void OnWatchEnd(Watch* watch, const std::string& error);
  void Lose(Shard& shard, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Shard* Find(const Watch* watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const DiscoveryOptions options_;
  const std::shared_ptr<rpc::TlsIdentity> tls_;
  const Clock& clock_;
  std::atomic<bool> changed_{false};

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Shard> shards_ ABSL_GUARDED_BY(mutex_);
  size_t watches_ ABSL_GUARDED_BY(mutex_) = 0;  // not yet done
  std::thread resolver_;
};

}  // namespace kvmesh::router
