// Conversations on meshes with checkpoints, in virtual time: whatever befalls shards, links, the
// arbiter and what is stored, every answer is what a run without any of it gives. Each run is a
// function of its seed, which a failure prints.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/mesh_sim.h"

namespace kvmesh::sim {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 1000;
#else
constexpr uint64_t kSeeds = 2000;
#endif

// Longer than a save, an orphan and a remembered session last.
constexpr absl::Duration kRest = absl::Seconds(120);

using Ids = std::vector<uint32_t>;

Ids Letters(std::mt19937_64& random, size_t count) {
  Ids ids(count);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random() % (testing::kToyVocabSize - 1));
  return ids;
}

Ids Joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// What came of checkpoints in a run, and in all of them.
struct Totals {
  size_t exact = 0;
  size_t partial = 0;
  size_t cached_tokens = 0;
  size_t repairs = 0;
  size_t reprefills = 0;
  size_t saves = 0;
  size_t failed_restores = 0;

  void Add(const SimGeneration& one) {
    const router::Reuse& reuse = one.generation().reuse();
    exact += reuse.outcome == router::Outcome::kExact ? 1 : 0;
    partial += reuse.outcome == router::Outcome::kPartial ? 1 : 0;
    cached_tokens += reuse.cached_tokens;
    repairs += one.generation().stats().repairs;
    reprefills += one.generation().stats().reprefills;
    saves += one.saves_started();
    failed_restores += absl::StartsWith(reuse.cause, "restore_failed") ? 1 : 0;
  }
};

// Two stages; a prompt, the same again, and a next turn of the conversation.
MeshOptions ThreeTurns(const Ids& prompt) {
  MeshOptions mesh{
      .shards = {{.address = "s0", .layers = {0, 3}}, {.address = "s1", .layers = {3, 6}}},
      .checkpoints = true};
  const Ids answer = testing::ToyGenerate(prompt, 6);
  mesh.generations = {{.prompt = prompt, .tokens = 6},
                      {.prompt = prompt, .tokens = 6, .start_after = absl::Seconds(1)},
                      {.prompt = Joined(Joined(prompt, answer), {1, 2, 3}),
                       .tokens = 6,
                       .start_after = absl::Seconds(2)}};
  return mesh;
}

void ExpectRightIds(const MeshSim& mesh, const MeshOptions& options) {
  for (size_t i = 0; i < options.generations.size(); ++i) {
    const GenerationOptions& wanted = options.generations[i];
    EXPECT_EQ(mesh.generations()[i].ids(),
              testing::ToyGenerate(wanted.prompt, wanted.tokens, wanted.sampling))
        << "generation " << i;
  }
}

const router::Reuse& ReuseOf(const MeshSim& mesh, size_t generation) {
  return mesh.generations()[generation].generation().reuse();
}

TEST(CheckpointSim, APromptAgainIsAFullHitAndTheNextTurnStartsWhereTheLastOneEnded) {
  std::mt19937_64 random(1);
  const MeshOptions options = ThreeTurns(Letters(random, 20));
  MeshSim mesh(options);
  ASSERT_TRUE(mesh.RunToEnd());
  ExpectRightIds(mesh, options);
  EXPECT_EQ(ReuseOf(mesh, 0).cause, "no_row");
  EXPECT_EQ(ReuseOf(mesh, 1).outcome, router::Outcome::kExact);
  EXPECT_EQ(ReuseOf(mesh, 1).cached_tokens, 20u);
  EXPECT_EQ(ReuseOf(mesh, 2).outcome, router::Outcome::kPartial);
  EXPECT_EQ(ReuseOf(mesh, 2).cached_tokens, 25u);  // all but the last token, which was not run
  ASSERT_TRUE(mesh.RunFor(kRest));
  EXPECT_EQ(mesh.Leftovers(), "");
  EXPECT_EQ(mesh.arbiter().leases(), 0u);
}

TEST(CheckpointSim, RowsOfOneSplitServeAnother) {
  std::mt19937_64 random(2);
  const Ids prompt = Letters(random, 20);
  MeshOptions options = ThreeTurns(prompt);
  options.shards = {{.address = "s0", .layers = {0, 3}}, {.address = "s1", .layers = {3, 6}}};
  for (const auto& [address, layers] :
       {std::pair<const char*, LayerRange>{"t0", {0, 2}}, {"t1", {2, 4}}, {"t2", {4, 6}}}) {
    options.shards.push_back({.address = address, .layers = layers});
  }
  options.restart_after = absl::InfiniteDuration();
  MeshSim mesh(options);
  mesh.events().After(absl::Milliseconds(800), [&mesh] {
    mesh.Kill(0);
    mesh.Kill(1);
  });
  ASSERT_TRUE(mesh.RunToEnd());
  ExpectRightIds(mesh, options);
  EXPECT_EQ(mesh.generations()[1].generation().hops().size(), 3u);
  EXPECT_EQ(ReuseOf(mesh, 1).outcome, router::Outcome::kExact);
  EXPECT_EQ(ReuseOf(mesh, 2).outcome, router::Outcome::kPartial);
}

TEST(CheckpointSim, AShardThatDrainsInDecodeCostsOneRepairAndNoPrefill) {
  std::mt19937_64 random(3);
  MeshOptions options{
      .shards = {{.address = "s0", .layers = {0, 3}}, {.address = "s1", .layers = {3, 6}}},
      .restart_after = absl::Milliseconds(100),
      .generations = {{.prompt = Letters(random, 20), .tokens = 20}},
      .checkpoints = true};
  // At any moment of the run, for either shard.
  size_t repaired = 0;
  for (size_t shard = 0; shard < 2; ++shard) {
    for (absl::Duration at = absl::Milliseconds(20); at < absl::Milliseconds(60);
         at += absl::Microseconds(500)) {
      MeshSim mesh(options);
      mesh.events().After(at, [&mesh, shard] { mesh.Drain(shard); });
      mesh.events().After(at + absl::Milliseconds(50), [&mesh, shard] { mesh.Kill(shard); });
      ASSERT_TRUE(mesh.RunToEnd());
      ExpectRightIds(mesh, options);
      const router::GenerationStats& stats = mesh.generations()[0].generation().stats();
      EXPECT_EQ(stats.reprefills, 0u) << "shard " << shard << " at " << at;
      EXPECT_LE(stats.repairs, 1u);
      repaired += stats.repairs;
    }
  }
  EXPECT_GT(repaired, 100u);
}

TEST(CheckpointSim, BothShardsAtOnceAreRepairedToo) {
  std::mt19937_64 random(4);
  const MeshOptions options{
      .shards = {{.address = "s0", .layers = {0, 3}}, {.address = "s1", .layers = {3, 6}}},
      .restart_after = absl::Milliseconds(100),
      .generations = {{.prompt = Letters(random, 20), .tokens = 20}},
      .checkpoints = true};
  MeshSim mesh(options);
  mesh.events().After(absl::Milliseconds(40), [&mesh] {
    mesh.Drain(0);
    mesh.Drain(1);
  });
  mesh.events().After(absl::Milliseconds(90), [&mesh] {
    mesh.Kill(0);
    mesh.Kill(1);
  });
  ASSERT_TRUE(mesh.RunToEnd());
  ExpectRightIds(mesh, options);
  EXPECT_EQ(mesh.generations()[0].generation().stats().repairs, 1u);
  EXPECT_EQ(mesh.generations()[0].generation().stats().reprefills, 0u);
}

TEST(CheckpointSim, AnArbiterThatIsAwayAddsNoMoreThanTheLookUpsDeadline) {
  std::mt19937_64 random(5);
  const Ids prompt = Letters(random, 20);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    MeshOptions options{.shards = {{.address = "s0", .layers = {0, 6}}},
                        .generations = {{.prompt = prompt, .tokens = 3}},
                        .seed = seed};
    MeshSim without(options);
    ASSERT_TRUE(without.RunToEnd());
    options.checkpoints = true;
    MeshSim mesh(options);
    mesh.arbiter().GoAway(absl::InfiniteDuration());
    ASSERT_TRUE(mesh.RunToEnd());
    ExpectRightIds(mesh, options);
    EXPECT_EQ(ReuseOf(mesh, 0).cause, "disabled: meta unavailable");
    // Latencies differ between the two runs by a few milliseconds.
    EXPECT_LE(mesh.generations()[0].answered_at(),
              without.generations()[0].answered_at() + absl::Milliseconds(550));
  }
}

// ---- At random ----

size_t Int(std::mt19937_64& random, size_t low, size_t high) {
  return low + random() % (high - low + 1);
}

std::vector<SimShardOptions> RandomShards(std::mt19937_64& random) {
  std::vector<SimShardOptions> shards;
  const size_t chains = Int(random, 1, 2);
  for (size_t chain = 0; chain < chains; ++chain) {
    for (uint32_t begin = 0; begin < kSimLayers;) {
      const auto end = static_cast<uint32_t>(Int(random, begin + 1, kSimLayers));
      shards.push_back({.address = absl::StrCat("s", shards.size()), .layers = {begin, end}});
      shards.back().store.sessions_max = static_cast<uint32_t>(Int(random, 2, 6));
      shards.back().store_time = absl::Milliseconds(Int(random, 1, 40));
      begin = end;
    }
  }
  return shards;
}

// Conversations behind a few system prompts; each turn's prompt is the turn before with its answer.
std::vector<GenerationOptions> RandomConversations(std::mt19937_64& random) {
  std::vector<Ids> systems;
  for (int i = 0; i < 2; ++i) systems.push_back(Letters(random, Int(random, 4, 40)));
  std::vector<GenerationOptions> generations;
  const size_t conversations = Int(random, 1, 3);
  for (size_t i = 0; i < conversations; ++i) {
    Ids prompt = systems[random() % systems.size()];
    absl::Duration start = absl::Milliseconds(Int(random, 0, 500));
    const size_t turns = Int(random, 1, 4);
    for (size_t turn = 0; turn < turns; ++turn) {
      prompt = Joined(std::move(prompt), Letters(random, Int(random, 0, 12)));
      GenerationOptions one{.prompt = prompt,
                            .tokens = static_cast<uint32_t>(Int(random, 1, 14)),
                            .start_after = start};
      if (Int(random, 0, 1) == 1) {
        one.sampling = {.temperature = 0.8,
                        .repetition_penalty = 1.2,
                        .presence_penalty = 0.3,
                        .seed = random() % 1000};
      }
      prompt =
          Joined(std::move(prompt), testing::ToyGenerate(one.prompt, one.tokens, one.sampling));
      start += absl::Milliseconds(Int(random, 50, 1500));
      generations.push_back(std::move(one));
    }
  }
  return generations;
}

void ScheduleTroubles(std::mt19937_64& random, MeshSim& mesh) {
  const size_t troubles = Int(random, 0, 6);
  for (size_t i = 0; i < troubles; ++i) {
    const size_t shard = random() % mesh.shards();
    const absl::Duration when = absl::Milliseconds(Int(random, 0, 5000));
    const absl::Duration how_long = absl::Milliseconds(Int(random, 10, 2000));
    const size_t kind = Int(random, 0, 4);
    mesh.events().After(when, [&mesh, shard, how_long, kind] {
      if (kind == 0) mesh.arbiter().LoseOne();
      if (kind == 1) mesh.arbiter().FlipAByte();
      if (kind == 2) mesh.arbiter().GoAway(mesh.events().now() + how_long);
      if (kind == 3) mesh.Kill(shard);
      if (kind == 4) mesh.Drain(shard);
    });
    if (kind == 4) {
      mesh.events().After(when + absl::Milliseconds(100), [&mesh, shard] { mesh.Kill(shard); });
    }
  }
}

std::vector<Fault> RandomCuts(std::mt19937_64& random) {
  std::vector<Fault> faults(Int(random, 0, 3));
  for (Fault& fault : faults) {
    fault = {.message = Int(random, 0, 400),
             .after = Int(random, 0, 1) == 1,
             .kind = Int(random, 0, 1) == 1 ? FaultKind::kCut : FaultKind::kCutLate};
  }
  return faults;
}

std::string RunSeed(uint64_t seed, Totals* totals) {
  std::mt19937_64 random(seed);
  MeshOptions options{.shards = RandomShards(random),
                      .restart_after = absl::Milliseconds(Int(random, 20, 2000)),
                      .discovery = absl::Milliseconds(Int(random, 1, 300)),
                      .generations = RandomConversations(random),
                      .checkpoints = true,
                      .seed = seed};
  MeshSim mesh(options);
  mesh.SetFaults(RandomCuts(random));
  ScheduleTroubles(random, mesh);
  if (!mesh.RunToEnd()) return "a generation never ends";
  for (size_t i = 0; i < options.generations.size(); ++i) {
    const SimGeneration& one = mesh.generation(i);
    const GenerationOptions& wanted = options.generations[i];
    if (!one.answer()->ok()) return absl::StrCat("generation ", i, ": ", one.answer()->ToString());
    if (one.ids() != testing::ToyGenerate(wanted.prompt, wanted.tokens, wanted.sampling)) {
      return absl::StrCat("generation ", i, ": other ids");
    }
    totals->Add(one);
  }
  if (!mesh.RunFor(kRest)) return "the mesh spins";
  if (mesh.arbiter().leases() > 0) return "a lease is left";
  return mesh.Leftovers();
}

TEST(CheckpointSim, CachedIdsAreTheStatelessIdsWhateverHappens) {
  Totals totals;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ASSERT_EQ(RunSeed(seed, &totals), "") << "seed " << seed;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  std::cout << kSeeds << " seeds ran: " << totals.exact << " full hits, " << totals.partial
            << " partial ones, " << totals.cached_tokens << " cached tokens, " << totals.saves
            << " saves, " << totals.repairs << " repairs, " << totals.reprefills << " re-prefills, "
            << totals.failed_restores << " prompts whose restore failed\n";
  EXPECT_GT(totals.exact, 0u);
  EXPECT_GT(totals.partial, 0u);
  EXPECT_GT(totals.repairs, 0u);
  EXPECT_GT(totals.failed_restores, 0u);
}

}  // namespace
}  // namespace kvmesh::sim
