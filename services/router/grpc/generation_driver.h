// Runs one Generation against real shards: performs its effects, feeds it what comes back.
// Thread-safe.
//
// Effects are performed in their order, by one thread at a time and without the lock that inputs
// take. Shared by the registry and by the calls in flight.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/trace.h"
#include "services/router/core/generation.h"
#include "services/router/grpc/checkpoint_reader.h"
#include "services/router/grpc/discovery.h"
#include "services/router/grpc/forward_stream.h"
#include "services/router/grpc/meta_client.h"
#include "services/router/grpc/router_metrics.h"

namespace kvmesh::router {

// What a generation was, at its end.
struct GenerationResult {
  GenerationStats stats;
  Reuse reuse;
  std::vector<uint32_t> effective_prompt;
  std::optional<Sha256Digest> finish_key;
};

// The client's end of a generation. OnToken and wants_tokens are called under the driver's lock and
// must not call it back.
class GenerationClient : public TokenSink {
 public:
  // False: too many tokens are on the way to the client.
  virtual bool wants_tokens() const = 0;
  // Sends the tokens on. Called after the frame that asks for the next one: the shards then compute
  // while the client is written to.
  virtual void Deliver() = 0;
  // Once, last.
  virtual void OnDone(const absl::Status& status, FinishReason reason,
                      const GenerationResult& result) = 0;
};

// Counts objects that calls in flight keep alive, so that what they refer to can wait for their
// end. Thread-safe.
class LiveCount {
 public:
  void Add() {
    MutexLock lock(&mutex_);
    ++count_;
  }
  void Remove() {
    MutexLock lock(&mutex_);
    --count_;
    zero_.NotifyAll();
  }
  // False: some live on after `timeout`.
  bool WaitForNone(absl::Duration timeout) {
    const absl::Time until = absl::Now() + timeout;
    MutexLock lock(&mutex_);
    while (count_ > 0 && absl::Now() < until) zero_.WaitFor(&mutex_, until - absl::Now());
    return count_ == 0;
  }

 private:
  Mutex mutex_;
  CondVar zero_;
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Where checkpoints are asked for and read; outlives the drivers.
struct CheckpointPorts {
  const CheckpointSetup& setup;
  MetaClient& meta;
  CheckpointReader& reader;
};

// What all drivers of a router share; outlives them.
struct DriverContext {
  Discovery& shards;
  const ModelIdentity& identity;
  const Clock& clock;
  RouterMetrics& metrics;
  GenerationLimits limits;
  const CheckpointPorts* checkpoints = nullptr;  // null: no arbiter
  absl::Duration probe_timeout = absl::Seconds(2);
  // The client has its answer: the place of this generation is free.
  // `tokens_run`: of prompt and answer.
  std::function<void(const SessionId&, uint64_t tokens_run)> on_done;
  LiveCount& live;
};

class GenerationDriver final : public std::enable_shared_from_this<GenerationDriver> {
 public:
  struct Info {
    SessionId session;
    std::string tenant;
    Phase phase = Phase::kIdle;
    bool waits_for_room = false;
    uint32_t prompt_tokens = 0;
    uint32_t output_tokens = 0;
    SessionEpoch epoch{0};
    StreamAttempt attempt{0};
    absl::Duration age;
    std::vector<forward::HopRef> hops;
  };

  GenerationDriver(DriverContext& context, GenerationSpec spec,
                   std::shared_ptr<GenerationClient> client, Retokenizer retokenize);
  ~GenerationDriver();
  GenerationDriver(const GenerationDriver&) = delete;
  GenerationDriver& operator=(const GenerationDriver&) = delete;

  void Start();
  void Cancel(const absl::Status& status);
  // Looks again whether the client wants tokens.
  void Poke();
  void OnShardsChanged();
  void Tick();
  // Cuts every stream, whatever state it is in: the process ends.
  void Abandon();

  MonoTime next_timer() const { return absl::Nanoseconds(next_timer_ns_.load()); }
  bool finished() const { return finished_.load(); }
  // Its client has the answer, or is about to; saves go out and streams end.
  bool closing() const { return answered_.load() && !finished_.load(); }
  bool waits_for_room() const { return waits_for_room_.load(); }
  const SessionId& session() const { return session_; }
  const std::string& tenant() const { return tenant_->name; }
  // From creation to Start.
  absl::Duration queued() const { return absl::Nanoseconds(queued_ns_.load()); }
  Info info() const;

 private:
  template <typename Input>
  void Apply(Input input);
  void PerformAll();
  void Perform(NeedRoute& effect);
  void Perform(OpenStream& effect);
  void Perform(SendFrame& effect);
  void Perform(EndStream& effect);
  void Perform(ProbeSessions& effect);
  void Perform(DropSession& effect);
  void Perform(AwaitParent& effect);
  void Perform(LookupRow& effect);
  void Perform(ReadCheckpoint& effect);
  void Perform(AwaitFragment& effect);
  void Perform(EndLease& effect);
  void Perform(ReserveRow& effect);
  void Perform(CancelReservation& effect);
  void Perform(RenewHolds& effect);
  void Perform(Event& effect);
  void Perform(SaveEnded& effect);
  void Perform(Done& effect);
  void TakeEffects() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetStream(StreamAttempt attempt);

  DriverContext& context_;
  const SessionId session_;
  const TenantPtr tenant_;
  const Trace trace_;
  const std::string log_id_;
  const absl::Time stream_deadline_;
  const std::shared_ptr<GenerationClient> client_;  // shared with the RPC that serves it
  const MonoTime created_at_;
  std::atomic<int64_t> next_timer_ns_;
  std::atomic<int64_t> queued_ns_{0};
  std::atomic<bool> answered_{false};
  std::atomic<bool> finished_{false};
  std::atomic<bool> waits_for_room_{false};

  mutable Mutex mutex_;
  Generation generation_ ABSL_GUARDED_BY(mutex_);
  std::deque<Effect> effects_ ABSL_GUARDED_BY(mutex_);
  bool performing_ ABSL_GUARDED_BY(mutex_) = false;

  Mutex streams_mutex_;
  std::map<StreamAttempt, std::shared_ptr<ForwardStream>> streams_ ABSL_GUARDED_BY(streams_mutex_);
};

}  // namespace kvmesh::router
