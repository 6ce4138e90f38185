// Runs a Hop: one lock around it, one thread that computes, and the performing of its effects on
// the streams.
//
// Thread-safe. Order of calls: Start, anything, Stop. No RPC starts under the lock; effects are
// performed by one thread at a time, so that each stream sees them in the hop's order.
#pragma once

#include <grpcpp/channel.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "services/shard/core/engine.h"
#include "services/shard/core/hop.h"
#include "services/shard/grpc/checkpoint_io.h"
#include "services/shard/grpc/peer_channels.h"
#include "services/shard/grpc/shard_metrics.h"

namespace kvmesh::shard {

class UpStream;
class DownStream;

inline constexpr size_t kIdleChannelsMax = 64;  // connections to next hops that wait for a stream

// What changes about a shard while it runs.
struct ShardSnapshot {
  uint32_t live_sessions = 0;
  uint32_t held_sessions = 0;
  uint64_t bytes_used = 0;
  bool draining = false;
  // Whether a watcher would want to hear of it at once.
  bool SameForWatchers(const ShardSnapshot& other) const {
    return live_sessions == other.live_sessions && held_sessions == other.held_sessions &&
           draining == other.draining;
  }
};

class ShardRuntime {
 public:
  // All references but `tls` (null for plaintext) must outlive it.
  ShardRuntime(const HopOptions& options, const Clock& clock, Engine& engine,
               const Vocabulary& vocabulary, ShardMetrics& metrics,
               const CheckpointIoOptions& checkpoints,
               const std::shared_ptr<rpc::TlsIdentity>& tls);
  ~ShardRuntime();
  ShardRuntime(const ShardRuntime&) = delete;
  ShardRuntime& operator=(const ShardRuntime&) = delete;

  void Start();
  // Ends the compute thread and every call to a next hop. The server has shut down before.
  void Stop();

  // Streams from callers.
  StreamId Register(std::shared_ptr<UpStream> stream);
  void Unregister(StreamId id);
  void OnFrame(StreamId id, forward::Frame frame);
  void OnBadFrame(StreamId id, const absl::Status& status);
  void OnUpLost(StreamId id);

  // Calls to next hops.
  void OnDownAnswer(StreamId id, forward::Answer answer);
  // `channel`: the one that the call had to itself.
  void OnDownEnd(StreamId id, const std::string& address, std::shared_ptr<grpc::Channel> channel,
                 const absl::Status& status);

  bool DropSession(const SessionId& session, SessionEpoch epoch);
  std::optional<SessionView> GetSession(const SessionId& session);
  std::vector<SessionView> ListSessions(const std::optional<SessionId>& after, size_t count);
  void Drain();
  // True once no stream is open and nothing runs; false after `timeout`.
  bool WaitUntilQuiet(absl::Duration timeout);

  // Once a second: session TTLs, streams that stall.
  void Tick();
  ShardSnapshot Snapshot() const;
  // How long the frame that runs now has been running; zero when none does.
  absl::Duration ComputingFor() const;

  const Clock& clock() const { return clock_; }
  ShardMetrics& metrics() { return metrics_; }
  uint64_t hidden_size() const { return options_.hidden_size; }

 private:
  // Runs `input` on the hop under the lock, then performs what it led to. The compute thread is
  // woken only when there is something to run: most inputs are answers on their way back, and a
  // thread that wakes for each takes processors from whoever computes the next step.
  template <typename Input>
  auto Do(Input input);
  void Flush();
  void Perform(Effect effect);
  void CallNextHop(OpenDown effect);
  std::unique_ptr<CheckpointIo> MakeCheckpoints(const CheckpointIoOptions& options);
  void ComputeLoop();
  void RunOne(Job job);
  std::shared_ptr<UpStream> FindUp(StreamId id);
  std::shared_ptr<DownStream> FindDown(StreamId id);

  const HopOptions options_;
  const Clock& clock_;
  Engine& engine_;
  const Vocabulary& vocabulary_;
  ShardMetrics& metrics_;
  JobRunner runner_;  // of the compute thread

  mutable Mutex mutex_;
  CondVar work_ready_;
  CondVar changed_;  // a stream or call ended
  Hop hop_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<CheckpointIo> checkpoints_;  // null: not a feature of this shard
  bool flushing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<MonoTime> computing_since_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_stream_ ABSL_GUARDED_BY(mutex_) = 1;
  // Shared with the streams themselves, which live until gRPC is done with them.
  absl::flat_hash_map<StreamId, std::shared_ptr<UpStream>> ups_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<StreamId, std::shared_ptr<DownStream>> downs_ ABSL_GUARDED_BY(mutex_);
  size_t calls_open_ ABSL_GUARDED_BY(mutex_) = 0;  // to next hops, cancelled ones included
  PeerChannels channels_;
  std::thread compute_thread_;
};

}  // namespace kvmesh::shard
