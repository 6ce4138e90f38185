// One shard process of a simulated mesh: a real Hop over the toy engine, with a compute thread that
// takes virtual time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "services/router/core/route_planner.h"
#include "services/shard/core/hop.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/network.h"
#include "tests/testing/toy_engine.h"

namespace kvmesh::sim {

inline constexpr uint32_t kSimLayers = 6;

struct SimShardOptions {
  std::string address;
  LayerRange layers;
  shard::StoreLimits store;
  bool supports_kv_cache = true;
  absl::Duration compute_time = absl::Milliseconds(1);  // of one job
};

// One start of the process; a restart is another object. After Stop nothing of it happens any more,
// but it must outlive the event queue's pending events.
class SimShard {
 public:
  SimShard(const SimShardOptions& options, InstanceId instance, EventQueue& events,
           Network& network);
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

  const SimShardOptions options_;
  const InstanceId instance_;
  EventQueue& events_;
  Network& network_;
  testing::ToyEngine engine_;
  const testing::ToyVocabulary vocabulary_;
  shard::Hop hop_;
  std::map<shard::StreamId, StreamKey> down_;
  bool job_out_ = false;
  bool alive_ = false;
  MonoTime frozen_until_;
};

InstanceId SimInstance(uint64_t number);
router::ModelIdentity SimModel();

}  // namespace kvmesh::sim
