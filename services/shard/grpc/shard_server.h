// One shard as an object: engine, hop, server and threads. main.cc makes one; tests make as many as
// they like. Thread-safe. Order of calls: Start, anything, Shutdown (the destructor does it too).
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/model/model.h"
#include "common/rpc/server.h"
#include "services/shard/core/engine.h"
#include "services/shard/core/job.h"
#include "services/shard/grpc/peer_book.h"
#include "services/shard/grpc/shard_metrics.h"
#include "services/shard/grpc/shard_runtime.h"
#include "services/shard/grpc/shard_service.h"

namespace kvmesh::shard {

struct ShardServerOptions {
  rpc::ServerOptions server;
  std::vector<std::string> peers;  // names that may be dialled (peer_book.h)
  std::vector<std::string> stores = {"*"};
  InstanceId instance = RandomId<InstanceId>();
  bool caching = true;
  uint32_t sessions_max = 8;
  uint64_t bytes_max = uint64_t{1} << 30;
  absl::Duration ttl = absl::Seconds(600);
  absl::Duration orphan_ttl = absl::Seconds(30);
  absl::Duration stream_idle_max = absl::Seconds(600);
  // A frame that runs for longer makes health NOT_SERVING.
  absl::Duration compute_stall = absl::Seconds(60);
  absl::Duration liveness_stall = absl::Seconds(120);  // health says "start me anew"
  uint32_t threads = 0;                                // of the engine, for Describe
  CheckpointOptions checkpoints;
  std::string meta_address;     // of the arbiter; empty: none
  uint32_t align_tokens = 256;  // of cut points
};

// One real step with a made-up token, so that a shard which cannot compute never says it serves.
struct SelfTestResult {
  bool cache_works = false;  // the step with state gave what the stateless one gave
};
// Internal: the engine failed, or its numbers are not finite.
absl::StatusOr<SelfTestResult> RunSelfTest(Engine& engine);

class ShardServer {
 public:
  // Unavailable: an address cannot be bound. Internal: the engine fails its self-test.
  // `clock` outlives the server; `digests` are those of the engine's layers.
  static absl::StatusOr<std::unique_ptr<ShardServer>> Start(
      const ShardServerOptions& options, const Clock& clock, std::unique_ptr<Engine> engine,
      std::unique_ptr<const Vocabulary> vocabulary, const model::ModelDigests& digests);
  ~ShardServer();
  ShardServer(const ShardServer&) = delete;
  ShardServer& operator=(const ShardServer&) = delete;

  const rpc::RpcServer& server() const { return *server_; }
  int port() const { return server_->port(); }
  const InstanceId& instance() const { return options_.instance; }
  metrics::Metrics& metrics() { return metrics_.metrics(); }
  ShardRuntime& runtime() { return *runtime_; }

  // Refuses new streams and ends open ones with DRAINING once their outstanding answer has passed.
  // Idempotent.
  void Drain();
  // False: streams are still open after `timeout`.
  bool WaitUntilQuiet(absl::Duration timeout) { return runtime_->WaitUntilQuiet(timeout); }
  // Ends everything; calls still running have `grace`. Idempotent.
  void Shutdown(absl::Duration grace);

 private:
  ShardServer(const ShardServerOptions& options, std::unique_ptr<Engine> engine,
              std::unique_ptr<const Vocabulary> vocabulary);
  HopOptions OptionsOfHop() const;
  std::vector<std::string> Features() const;
  CheckpointIoOptions OptionsOfCheckpoints() const;
  v1::DescribeResponse Description(const model::ModelDigests& digests) const;
  void TickLoop();

  const ShardServerOptions options_;
  const std::unique_ptr<Engine> engine_;
  const std::unique_ptr<const Vocabulary> vocabulary_;
  bool caching_ = false;
  ShardMetrics metrics_;
  PeerBook peers_;
  PeerBook stores_;
  std::unique_ptr<ShardRuntime> runtime_;
  std::unique_ptr<ShardService> service_;
  std::unique_ptr<rpc::RpcServer> server_;

  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread ticker_;
};

}  // namespace kvmesh::shard
