// Random meshes, generations and faults in virtual time: each run is a function of its seed, which
// a failure prints.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/sim/mesh_sim.h"

namespace kvmesh::sim {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 1500;
#else
constexpr uint64_t kSeeds = 20000;
#endif

// Longer than a process stays frozen and an orphan lives.
constexpr absl::Duration kRest = absl::Seconds(120);

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  // In [low, high].
  size_t Int(size_t low, size_t high) {
    return std::uniform_int_distribution<size_t>(low, high)(random_);
  }
  bool OneIn(size_t n) { return Int(1, n) == 1; }
  absl::Duration Time(absl::Duration low, absl::Duration high) {
    return low + (high - low) * std::uniform_real_distribution<double>(0, 1)(random_);
  }

 private:
  std::mt19937_64 random_;
};

// A chain that covers all layers, cut at random places.
void AddChain(Dice& dice, const shard::StoreLimits& store, absl::Duration compute,
              std::vector<SimShardOptions>* shards) {
  uint32_t begin = 0;
  while (begin < kSimLayers) {
    const auto end = static_cast<uint32_t>(dice.Int(begin + 1, kSimLayers));
    shards->push_back({.address = absl::StrCat("s", shards->size()),
                       .layers = {begin, end},
                       .store = store,
                       .compute_time = compute});
    begin = end;
  }
}

GenerationOptions RandomGeneration(Dice& dice) {
  GenerationOptions one{.tokens = static_cast<uint32_t>(dice.Int(1, 12)),
                        .start_after = dice.Time(absl::ZeroDuration(), absl::Seconds(1)),
                        .stateless = dice.OneIn(12),
                        .token_ids = !dice.OneIn(12)};
  const size_t length = dice.OneIn(6) ? dice.Int(500, 1400) : dice.Int(1, 30);
  for (size_t i = 0; i < length; ++i) {
    one.prompt.push_back(static_cast<uint32_t>(dice.Int(0, testing::kToyVocabSize - 1)));
  }
  if (dice.OneIn(2)) {
    one.sampling = {.temperature = 0.8,
                    .top_k = static_cast<uint32_t>(dice.Int(0, 20)),
                    .repetition_penalty = 1.2,
                    .presence_penalty = 0.3,
                    .seed = dice.Int(0, 1u << 30)};
  }
  if (dice.OneIn(8)) one.cancel_after = dice.Time(absl::ZeroDuration(), absl::Milliseconds(200));
  return one;
}

MeshOptions RandomMesh(Dice& dice, uint64_t seed) {
  MeshOptions mesh{.restart_after = dice.Time(absl::Milliseconds(20), absl::Seconds(3)),
                   .discovery = dice.Time(absl::Milliseconds(1), absl::Milliseconds(500)),
                   .seed = seed};
  shard::StoreLimits store{.sessions_max = static_cast<uint32_t>(dice.Int(1, 8))};
  const absl::Duration compute = dice.Time(absl::Microseconds(100), absl::Milliseconds(20));
  const size_t chains = dice.Int(1, 3);
  for (size_t i = 0; i < chains; ++i) AddChain(dice, store, compute, &mesh.shards);
  const size_t generations = dice.Int(1, 5);
  for (size_t i = 0; i < generations; ++i) mesh.generations.push_back(RandomGeneration(dice));
  return mesh;
}

std::vector<Fault> RandomFaults(Dice& dice, size_t shards) {
  std::vector<Fault> faults(dice.Int(0, 6));
  for (Fault& fault : faults) {
    fault = {.message = dice.Int(0, 250),
             .after = dice.OneIn(2),
             .kind = static_cast<FaultKind>(dice.Int(0, 2)),
             .victim = dice.Int(0, shards - 1)};
  }
  return faults;
}

// Things that befall a process rather than a message. Returns how many.
size_t ScheduleTroubles(Dice& dice, MeshSim& mesh) {
  const size_t count = dice.OneIn(3) ? dice.Int(1, 3) : 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t shard = dice.Int(0, mesh.shards() - 1);
    const absl::Duration when = dice.Time(absl::ZeroDuration(), absl::Seconds(2));
    if (dice.OneIn(2)) {
      const absl::Duration time = dice.Time(absl::Milliseconds(10), absl::Seconds(60));
      mesh.events().After(when, [&mesh, shard, time] { mesh.shard(shard).Freeze(time); });
    } else {
      mesh.events().After(when, [&mesh, shard] { mesh.Drain(shard); });
      mesh.events().After(when + absl::Seconds(2), [&mesh, shard] { mesh.Kill(shard); });
    }
  }
  return count;
}

std::string JudgeOne(const SimGeneration& one, const GenerationOptions& options, size_t troubles) {
  const std::vector<uint32_t> expected =
      testing::ToyGenerate(options.prompt, options.tokens, options.sampling);
  const router::GenerationStats& stats = one.generation().stats();
  if (stats.reprefills > troubles) {
    return absl::StrCat(stats.reprefills, " re-prefills after ", troubles, " troubles");
  }
  if (options.cancel_after.has_value() && !one.answer()->ok()) {
    if (!absl::IsCancelled(*one.answer())) return one.answer()->ToString();
    const bool prefix = one.ids().size() <= expected.size() &&
                        std::equal(one.ids().begin(), one.ids().end(), expected.begin());
    return prefix ? "" : "other ids before the cancel";
  }
  if (!one.answer()->ok()) return one.answer()->ToString();
  return one.ids() == expected ? "" : "other ids";
}

std::string RunSeed(uint64_t seed) {
  Dice dice(seed);
  const MeshOptions options = RandomMesh(dice, seed);
  MeshSim mesh(options);
  mesh.SetFaults(RandomFaults(dice, options.shards.size()));
  const size_t troubles = ScheduleTroubles(dice, mesh);
  if (!mesh.RunToEnd()) return "a generation never ends";
  for (size_t i = 0; i < options.generations.size(); ++i) {
    const std::string wrong =
        JudgeOne(mesh.generation(i), options.generations[i], troubles + mesh.struck().size());
    if (!wrong.empty()) return absl::StrCat("generation ", i, ": ", wrong);
  }
  if (!mesh.RunFor(kRest)) return "the mesh spins";
  return mesh.Leftovers();
}

TEST(Seeded, RandomFaultsLeaveTheIdsAloneAndNothingBehind) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ASSERT_EQ(RunSeed(seed), "") << "seed " << seed;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  std::cout << kSeeds << " seeds ran\n";
}

}  // namespace
}  // namespace kvmesh::sim
