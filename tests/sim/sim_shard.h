// One shard process of a simulated mesh: a real Hop over the toy engine, with a compute thread that
// takes virtual time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "services/router/core/route_planner.h"
#include "services/shard/core/hop.h"
#include "services/shard/core/save_slab.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/network.h"
#include "tests/sim/sim_arbiter.h"
#include "tests/testing/toy_engine.h"

namespace kvmesh::sim {

inline constexpr uint32_t kSimLayers = 6;

struct SimShardOptions {
  std::string address;
  LayerRange layers;
  shard::StoreLimits store;
  bool supports_kv_cache = true;
  absl::Duration compute_time = absl::Milliseconds(1);  // of one job
  absl::Duration store_time = absl::Milliseconds(3);    // of storing or reading a slab
};

// One start of the process; a restart is another object. After Stop nothing of it happens any more,
// but it must outlive the event queue's pending events.
class SimShard {
 public:
  // `arbiter`: null without checkpoints; else it outlives the shard.
  SimShard(const SimShardOptions& options, InstanceId instance, EventQueue& events,
           Network& network, SimArbiter* arbiter);
  SimShard(const SimShard&) = delete;
  SimShard& operator=(const SimShard&) = delete;

  void Start();
  void Stop();
  // A process that does nothing and answers nothing for a while, then goes on.
  void Freeze(absl::Duration time);
  void Drain();
  void DropSession(const SessionId& session, SessionEpoch epoch);
  // False: no answer (frozen or stopped).
  bool Answers() const { return alive_ && events_.now() >= frozen_until_; }

  router::ShardFacts Facts() const;
  const SimShardOptions& options() const { return options_; }
  const InstanceId& instance() const { return instance_; }
  const shard::Hop& hop() const { return hop_; }
  bool alive() const { return alive_; }

 private:
  // Runs `input` on the hop, now or when the process thaws, and what follows from it.
  void Input(std::function<void()> input);
  void Perform();
  void Compute();
  void TickEverySecond();
  void CallNext(const shard::OpenDown& effect);
  void Save(const std::shared_ptr<shard::SaveJob>& job);
  void EndSave(const std::shared_ptr<shard::SaveJob>& job);
  void Restore(const shard::RestoreJob& job);
  shard::RestoreResult ReadAll(const shard::RestoreJob& job) const;

  const SimShardOptions options_;
  const InstanceId instance_;
  EventQueue& events_;
  Network& network_;
  SimArbiter* const arbiter_;
  testing::ToyEngine engine_;
  const testing::ToyVocabulary vocabulary_;
  shard::JobRunner runner_{engine_, vocabulary_};
  const shard::SlabFacts facts_;
  shard::Hop hop_;
  std::map<shard::StreamId, StreamKey> down_;
  bool job_out_ = false;
  bool alive_ = false;
  MonoTime frozen_until_;
};

// Gates of a few tokens, the same at shards and routers.
inline constexpr uint32_t kSimMinTokens = 8;
inline constexpr uint32_t kSimAlignTokens = 8;

InstanceId SimInstance(uint64_t number);
router::ModelIdentity SimModel();

}  // namespace kvmesh::sim
