#include "tests/sim/mesh_sim.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh::sim {
namespace {

constexpr size_t kEventsMax = 2'000'000;
constexpr absl::Duration kLatency = absl::Milliseconds(1);

router::CheckpointOptions SimCheckpoints() {
  router::CheckpointOptions options{.layer_count = kSimLayers};
  options.gates = {.min_tokens = kSimMinTokens,
                   .cold_min_tokens = 4,
                   .cold_max_tokens = 1000,
                   .continued_interval = 5,
                   .boundary_trim_tokens = 2,
                   .boundary_align_tokens = kSimAlignTokens,
                   .restore_min_tokens = 4};
  return options;
}

}  // namespace

std::vector<SimShardOptions> ThreeHops(bool replicas) {
  std::vector<SimShardOptions> shards;
  for (const char* name : {"h", "r"}) {
    for (uint32_t i = 0; i < 3; ++i) {
      shards.push_back({.address = absl::StrCat(name, i), .layers = {2 * i, 2 * i + 2}});
    }
    if (!replicas) break;
  }
  return shards;
}

MeshSim::MeshSim(const MeshOptions& options)
    : options_(options),
      random_(options.seed),
      network_(events_, [this] { return Latency(); }),
      arbiter_(options.checkpoints
                   ? std::optional<SimArbiter>(std::in_place, kSimLayers, options.seed)
                   : std::nullopt),
      shards_(options.shards.size()),
      known_(options.shards.size()) {
  if (options_.checkpoints) setup_.emplace(router::CheckpointSetup{SimCheckpoints(), tokenizer_});
  for (size_t i = 0; i < options_.shards.size(); ++i) {
    StartShard(i);
    known_[i] = shards_[i]->Facts();
  }
  for (size_t i = 0; i < options_.generations.size(); ++i) {
    generations_.emplace_back(*this, i, options_.generations[i], options_.seed * 1000 + i);
    generations_.back().Start();
  }
}

absl::Duration MeshSim::Latency() {
  if (options_.seed == 0) return kLatency;
  return kLatency * std::uniform_real_distribution<double>(0.1, 3.0)(random_);
}

void MeshSim::SetFaults(std::vector<Fault> faults) {
  network_.SetFaults(
      std::move(faults),
      [this](const Fault& fault) {
        const router::Generation& first = generations_[0].generation();
        struck_.push_back({fault, first.phase(), first.stats().tokens});
      },
      [this](size_t victim) { Kill(victim); });
}

bool MeshSim::RunToEnd(absl::Duration limit) {
  const auto ended = [this] {
    return std::all_of(generations_.begin(), generations_.end(), [](const SimGeneration& one) {
      return one.answer().has_value() && one.generation().finished();
    });
  };
  return events_.RunUntil(events_.now() + limit, kEventsMax, ended) && ended();
}

bool MeshSim::RunFor(absl::Duration time) {
  return events_.RunUntil(events_.now() + time, kEventsMax, [] { return false; });
}

void MeshSim::StartShard(size_t shard) {
  shards_[shard] = std::make_unique<SimShard>(options_.shards[shard], SimInstance(next_instance_++),
                                              events_, network_, arbiter_ ? &*arbiter_ : nullptr);
  shards_[shard]->Start();
}

void MeshSim::Discover(size_t shard) {
  events_.After(options_.discovery, [this, shard] {
    const SimShard& process = *shards_[shard];
    known_[shard].reset();
    if (process.alive() && !process.hop().draining()) known_[shard] = process.Facts();
    for (SimGeneration& one : generations_) {
      one.Input(
          [this](router::Generation& generation) { generation.OnShardsChanged(events_.now()); });
    }
  });
}

void MeshSim::Kill(size_t shard) {
  if (!shards_[shard]->alive()) return;
  shards_[shard]->Stop();
  Discover(shard);
  if (options_.restart_after == absl::InfiniteDuration()) return;
  events_.After(options_.restart_after, [this, shard] { Restart(shard); });
}

void MeshSim::Restart(size_t shard) {
  if (shards_[shard]->alive()) return;
  dead_.push_back(std::move(shards_[shard]));
  StartShard(shard);
  Discover(shard);
}

void MeshSim::Drain(size_t shard) {
  shards_[shard]->Drain();
  Discover(shard);
}

absl::StatusOr<router::RoutePlan> MeshSim::Plan(const router::RouteRequest& request) const {
  std::vector<router::ShardFacts> facts;
  for (const auto& one : known_) {
    if (one.has_value()) facts.push_back(*one);
  }
  return router::PlanRoute(facts, SimModel(), request);
}

SimShard* MeshSim::Process(const forward::HopRef& hop) {
  for (const auto& shard : shards_) {
    if (shard->alive() && shard->options().address == hop.address &&
        shard->instance() == hop.instance) {
      return shard.get();
    }
  }
  return nullptr;
}

std::string MeshSim::Leftovers() const {
  std::string found;
  for (const auto& shard : shards_) {
    if (!shard->alive()) continue;
    const shard::Hop& hop = shard->hop();
    if (hop.store().size() == 0 && hop.streams() == 0 && hop.queued_frames() == 0 &&
        hop.store().bytes_used() == 0) {
      continue;
    }
    absl::StrAppend(&found, shard->options().address, ": ", hop.store().size(), " sessions, ",
                    hop.streams(), " streams, ", hop.queued_frames(), " frames, ",
                    hop.store().bytes_used(), " bytes; ");
  }
  return found;
}

}  // namespace kvmesh::sim
