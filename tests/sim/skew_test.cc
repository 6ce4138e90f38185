// Hops that differ by a step: links that break before or after any message, shards that die at any
// message, frames of old attempts that come late. Three hops, four steps, every pair of faults.
#include <gtest/gtest.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "tests/sim/mesh_sim.h"

namespace kvmesh::sim {
namespace {

constexpr uint32_t kSteps = 4;
constexpr size_t kHops = 3;
// Under a sanitizer a run takes some ten times as long: every so-many-th second fault is enough.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStride = 11;
#else
constexpr size_t kStride = 1;
#endif

const std::vector<uint32_t>& Prompt() {
  static const auto& prompt = *new std::vector<uint32_t>{7, 1, 7, 42, 3};
  return prompt;
}

MeshOptions SkewMesh(bool replicas) {
  MeshOptions mesh{.shards = ThreeHops(replicas),
                   .generations = {{.prompt = Prompt(), .tokens = kSteps}}};
  if (replicas) mesh.restart_after = absl::InfiniteDuration();
  return mesh;
}

std::string Names(const std::vector<Fault>& faults) {
  std::string names;
  for (const Fault& fault : faults) absl::StrAppend(&names, FaultName(fault), "; ");
  return names;
}

// Whether all that happened was links that broke between two decode steps, none of which may cost a
// prefill. The exception, where replicas stand by: a link that is lost again on the retry of a step
// cannot be told from a dead shard, so the generation moves. (The first break may have been seen
// together with the step's answer, hence the distance of two.)
bool MustKeepItsState(const MeshSim& mesh, bool replicas) {
  const std::vector<FaultRecord>& struck = mesh.struck();
  for (size_t i = 0; i < struck.size(); ++i) {
    if (struck[i].fault.kind == FaultKind::kKill) return false;
    if (struck[i].phase != router::Phase::kDecode) return false;
    if (replicas && i > 0 && struck[i].tokens - struck[i - 1].tokens < 2) return false;
  }
  return true;
}

// What went wrong in a run that is over; empty: nothing.
std::string Judge(MeshSim& mesh, const std::vector<uint32_t>& expected) {
  if (!mesh.RunToEnd()) return "the generation never ends";
  const SimGeneration& one = mesh.generations()[0];
  if (!one.answer()->ok()) return absl::StrCat("ended with ", one.answer()->ToString());
  if (one.ids() != expected) return "other ids";
  const router::GenerationStats& stats = one.generation().stats();
  if (stats.reprefills > mesh.struck().size()) {
    return absl::StrCat(stats.reprefills, " re-prefills");
  }
  if (MustKeepItsState(mesh, mesh.shards() > kHops) && stats.reprefills + stats.cache_misses > 0) {
    return absl::StrCat(stats.reprefills, " re-prefills and ", stats.cache_misses,
                        " misses, although only links broke");
  }
  // Longer than an orphan lives.
  if (!mesh.RunFor(absl::Seconds(35))) return "the mesh spins";
  for (size_t i = 0; i < mesh.shards(); ++i) {
    const auto& evictions = mesh.shard(i).hop().store().counters().evictions;
    if (evictions[static_cast<int>(shard::EvictCause::kLru)] > 0 ||
        evictions[static_cast<int>(shard::EvictCause::kBytes)] > 0) {
      return "a session was evicted to make room";
    }
  }
  return mesh.Leftovers();
}

// Every fault that may strike at one message.
std::vector<Fault> FaultsAt(size_t message, size_t victims) {
  std::vector<Fault> faults;
  for (const bool after : {false, true}) {
    faults.push_back({.message = message, .after = after, .kind = FaultKind::kCut});
    faults.push_back({.message = message, .after = after, .kind = FaultKind::kCutLate});
    for (size_t victim = 0; victim < victims; ++victim) {
      faults.push_back(
          {.message = message, .after = after, .kind = FaultKind::kKill, .victim = victim});
    }
  }
  return faults;
}

// Runs one case; returns how many messages it took.
size_t RunCase(const MeshOptions& options, const std::vector<Fault>& faults,
               const std::vector<uint32_t>& expected) {
  MeshSim mesh(options);
  mesh.SetFaults(faults);
  const std::string wrong = Judge(mesh, expected);
  EXPECT_EQ(wrong, "") << "with " << Names(faults);
  return mesh.messages();
}

void EveryPairOfFaults(const MeshOptions& options, size_t victims) {
  const std::vector<uint32_t> expected = testing::ToyGenerate(Prompt(), kSteps);
  const size_t messages = RunCase(options, {}, expected);
  size_t cases = 0;
  for (size_t first = 0; first < messages; ++first) {
    for (const Fault& one : FaultsAt(first, victims)) {
      const size_t messages_then = RunCase(options, {one}, expected);
      ++cases;
      for (size_t second = first + 1; second < messages_then; ++second) {
        for (const Fault& other : FaultsAt(second, victims)) {
          if (cases++ % kStride != 0) continue;
          RunCase(options, {one, other}, expected);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
  std::cout << cases / kStride << " cases ran, " << messages << " messages undisturbed\n";
}

TEST(Skew, NothingIsLeftOfAGenerationThatNothingDisturbs) {
  MeshSim mesh(SkewMesh(false));
  ASSERT_TRUE(mesh.RunToEnd());
  EXPECT_EQ(mesh.generations()[0].ids(), testing::ToyGenerate(Prompt(), kSteps));
  EXPECT_EQ(mesh.generations()[0].generation().stats().reprefills, 0u);
  ASSERT_TRUE(mesh.RunFor(absl::Milliseconds(100)));
  EXPECT_EQ(mesh.Leftovers(), "");
}

TEST(Skew, EverySingleFaultLeavesTheIdsAlone) {
  for (const bool replicas : {false, true}) {
    const std::vector<uint32_t> expected = testing::ToyGenerate(Prompt(), kSteps);
    const size_t messages = RunCase(SkewMesh(replicas), {}, expected);
    for (size_t message = 0; message < messages; ++message) {
      for (const Fault& fault : FaultsAt(message, kHops)) {
        RunCase(SkewMesh(replicas), {fault}, expected);
      }
    }
  }
}

TEST(SkewPairs, EveryPairOfFaultsLeavesTheIdsAloneWhenShardsRestart) {
  EveryPairOfFaults(SkewMesh(false), kHops);
}

TEST(SkewPairs, EveryPairOfFaultsLeavesTheIdsAloneWhenReplicasStandBy) {
  EveryPairOfFaults(SkewMesh(true), kHops);
}

}  // namespace
}  // namespace kvmesh::sim
