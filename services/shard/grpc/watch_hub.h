// Watch calls: each gets the shard's facts at once, at every change and at every heartbeat it asked
// for. Thread-safe.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <set>

#include "common/base/mutex.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "services/shard/grpc/shard_runtime.h"

namespace kvmesh::shard {

// How often the hub looks for changes: also the shortest heartbeat.
inline constexpr absl::Duration kWatchTick = absl::Milliseconds(100);

class WatchHub {
 public:
  // `facts` fills a response from a snapshot; `runtime` outlives the hub.
  WatchHub(ShardRuntime& runtime, std::function<v1::WatchResponse(const ShardSnapshot&)> facts);
  ~WatchHub();

  grpc::ServerWriteReactor<v1::WatchResponse>* Accept(grpc::CallbackServerContext* context,
                                                      const v1::WatchRequest& request);
  // Every kWatchTick.
  void Tick();
  // Tells every watcher now.
  void Announce();
  // Ends every call, so that the server can shut down; later calls end at once.
  void Stop();

 private:
  class Watcher;
  std::vector<std::shared_ptr<Watcher>> Watchers();
  void Remove(const std::shared_ptr<Watcher>& watcher);

  ShardRuntime& runtime_;
  const std::function<v1::WatchResponse(const ShardSnapshot&)> facts_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  ShardSnapshot last_ ABSL_GUARDED_BY(mutex_);
  // Shared with the watchers themselves, which live until gRPC is done with them.
  std::set<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::shard
