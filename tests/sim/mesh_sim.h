// A whole mesh in virtual time: shards, routers' generations, discovery, faults. A run is a
// function of its options and faults.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "services/router/core/generation.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/network.h"
#include "tests/sim/sim_arbiter.h"
#include "tests/sim/sim_shard.h"
#include "tests/testing/toy_tokenizer.h"

namespace kvmesh::sim {

struct GenerationOptions {
  std::vector<uint32_t> prompt;
  uint32_t tokens = 4;  // wanted
  forward::SamplingOptions sampling;
  absl::Duration start_after;
  absl::Duration deadline = absl::Seconds(600);
  bool stateless = false;
  bool token_ids = true;  // false: the tail's answers come without ids
  router::CheckpointUse checkpoints;
  std::optional<absl::Duration> cancel_after;
};

struct MeshOptions {
  std::vector<SimShardOptions> shards;
  absl::Duration restart_after = absl::Milliseconds(700);  // of a killed shard; infinite: never
  // From a change to the router's knowing of it.
  absl::Duration discovery = absl::Milliseconds(5);
  std::vector<GenerationOptions> generations;
  bool checkpoints = false;  // an arbiter, and shards that save and restore
  uint64_t seed = 0;         // not 0: latencies vary
};

class MeshSim;

// One generation and the client that waits for it.
class SimGeneration final : public router::TokenSink {
 public:
  SimGeneration(MeshSim& mesh, size_t index, const GenerationOptions& options, uint64_t seed);
  SimGeneration(const SimGeneration&) = delete;
  SimGeneration& operator=(const SimGeneration&) = delete;

  void Start();
  void Input(const std::function<void(router::Generation&)>& input);

  const router::Generation& generation() const { return generation_; }
  const std::vector<uint32_t>& ids() const { return ids_; }
  // What the client was told; none while it waits.
  const std::optional<absl::Status>& answer() const { return answer_; }
  const std::vector<std::string>& miss_causes() const { return miss_causes_; }
  size_t saves_started() const { return saves_started_; }
  MonoTime answered_at() const { return answered_at_; }

  router::FinishReason OnToken(const forward::Output& output, MonoTime now) override;
  uint32_t tokens_shown() const override { return static_cast<uint32_t>(ids_.size()); }

 private:
  void Perform();
  void Do(router::NeedRoute effect);
  void Do(router::OpenStream effect);
  void Do(router::SendFrame effect);
  void Do(const router::EndStream& effect);
  void Do(const router::ProbeSessions& effect);
  void Do(const router::DropSession& effect);
  void Do(const router::Event& effect);
  void Do(const router::Done& effect);
  void Do(const router::AwaitParent& effect);
  void Do(const router::LookupRow& effect);
  void Do(const router::ReadCheckpoint& effect);
  void Do(const router::AwaitFragment& effect);
  void Do(const router::ReserveRow& effect);
  void Do(const router::CancelReservation& effect);
  void Do(const router::EndLease& effect);
  void Do(const router::RenewHolds&) {}  // nothing lapses here
  void Do(const router::SaveEnded& effect);
  // Answers by `input` after a while, with what `ask` gives then; or, of an arbiter that is away,
  // UNAVAILABLE or nothing until `timeout`.
  template <typename T>
  void Ask(absl::Duration timeout, std::function<absl::StatusOr<T>()> ask,
           std::function<void(router::Generation&, absl::StatusOr<T>)> input);
  void TryFragment(const router::AwaitFragment& effect, MonoTime until);
  void ScheduleTick();

  MeshSim& mesh_;
  const GenerationOptions options_;
  router::Generation generation_;
  std::map<StreamAttempt, StreamKey> streams_;
  std::vector<uint32_t> ids_;
  std::optional<absl::Status> answer_;
  MonoTime answered_at_;
  std::vector<std::string> miss_causes_;
  size_t saves_started_ = 0;
  MonoTime tick_at_ = absl::InfiniteDuration();
};

// What struck, and when.
struct FaultRecord {
  Fault fault;
  // Of the first generation then.
  router::Phase phase = router::Phase::kIdle;
  uint32_t tokens = 0;
};

class MeshSim {
 public:
  explicit MeshSim(const MeshOptions& options);

  void SetFaults(std::vector<Fault> faults);
  // Until every generation has ended, or `limit` has passed. False: they have not, or the mesh
  // spins.
  bool RunToEnd(absl::Duration limit = absl::Seconds(900));
  bool RunFor(absl::Duration time);

  void Kill(size_t shard);
  void Restart(size_t shard);
  void Drain(size_t shard);
  SimShard& shard(size_t index) { return *shards_[index]; }
  size_t shards() const { return shards_.size(); }

  const std::deque<SimGeneration>& generations() const { return generations_; }
  SimGeneration& generation(size_t index) { return generations_[index]; }
  const std::vector<FaultRecord>& struck() const { return struck_; }
  size_t messages() const { return network_.delivered(); }
  // What a mesh at rest must not have: sessions, streams, queued frames. Empty: clean.
  std::string Leftovers() const;

  // For generations.
  SimArbiter& arbiter() { return *arbiter_; }
  const router::CheckpointSetup* checkpoints() const { return setup_ ? &*setup_ : nullptr; }
  EventQueue& events() { return events_; }
  Network& network() { return network_; }
  absl::Duration Latency();
  absl::StatusOr<router::RoutePlan> Plan(const router::RouteRequest& request) const;
  SimShard* Process(const forward::HopRef& hop);

 private:
  void StartShard(size_t shard);
  // Routers see the shard as it is now, a little later.
  void Discover(size_t shard);

  const MeshOptions options_;
  std::mt19937_64 random_;
  EventQueue events_;
  Network network_;
  const testing::ToyTokenizer tokenizer_;
  std::optional<SimArbiter> arbiter_;
  std::optional<router::CheckpointSetup> setup_;
  std::vector<std::unique_ptr<SimShard>> shards_;  // the newest process of each
  std::vector<std::unique_ptr<SimShard>> dead_;    // pending events still name them
  std::vector<std::optional<router::ShardFacts>> known_;
  std::deque<SimGeneration> generations_;
  std::vector<FaultRecord> struck_;
  uint64_t next_instance_ = 1;
};

// Three shards of two layers each at h0, h1, h2; with `replicas` three more at r0, r1, r2.
std::vector<SimShardOptions> ThreeHops(bool replicas);

}  // namespace kvmesh::sim
