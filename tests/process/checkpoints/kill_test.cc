// Every process in turn is killed while state is saved, and while it is restored: the answer is
// right, the next ones are, and nothing is left of what was under way.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/process/checkpoints/checkpoint_mesh.h"

namespace kvmesh::process_testing {
namespace {

enum class Victim { kRouter, kFirstShard, kTail, kMeta, kStore };

std::string NameOf(const ::testing::TestParamInfo<Victim>& info) {
  constexpr const char* kNames[] = {"Router", "FirstShard", "Tail", "Arbiter", "Store"};
  return kNames[static_cast<size_t>(info.param)];
}

ServerProcess& Of(CheckpointMesh& mesh, Victim victim) {
  switch (victim) {
    case Victim::kRouter:
      return mesh.router();
    case Victim::kFirstShard:
      return mesh.shard(0);
    case Victim::kTail:
      return mesh.shard(1);
    case Victim::kMeta:
      return mesh.meta();
    case Victim::kStore:
      break;
  }
  return mesh.store();
}

// Saves work again: the prompt is found, whole or but for what is not worth a row of its own.
void ExpectWarmSoon(CheckpointMesh& mesh, const v1::GenerateRequest& request,
                    const std::vector<uint32_t>& right) {
  v1::Usage usage;
  EXPECT_TRUE(WaitUntil([&] {
    const Answer answer = mesh.Ask(request);
    EXPECT_EQ(answer.ids, right);
    usage = answer.finished.usage();
    return usage.outcome() == "EXACT" || usage.outcome() == "PARTIAL";
  })) << usage.ShortDebugString();
}

class Killed : public ::testing::TestWithParam<Victim> {};

// The store takes nothing while it is frozen, so that the saves of the first answer are under way
// when the victim dies.
TEST_P(Killed, DuringASaveItTakesNothingAlong) {
  CheckpointMesh mesh;
  mesh.Connect();
  const v1::GenerateRequest request = AskFor(PromptText("saves"));
  const std::vector<uint32_t> right = mesh.Ask(Stateless(request)).ids;
  mesh.store().Freeze();
  EXPECT_EQ(mesh.Ask(request).ids, right);
  ASSERT_TRUE(WaitUntil([&] {
    return mesh.shard(0).Metric("kvmesh_shard_saves_in_flight") > 0 &&
           mesh.shard(1).Metric("kvmesh_shard_saves_in_flight") > 0;
  }));
  ServerProcess& victim = Of(mesh, GetParam());
  victim.Kill();
  if (GetParam() != Victim::kStore) mesh.store().Thaw();
  victim.Start();
  mesh.AwaitReady();
  const Answer again = mesh.Ask(request);
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.ids, right);
  mesh.ExpectNothingLeft();
  // What one shard stored of a write that the other did not end is no row, and in nobody's way.
  ExpectWarmSoon(mesh, request, right);
  mesh.ExpectNothingLeft();
}

// A row's two slabs lie in two stores. The one that has the first layers is frozen when the router
// has read the other, so that the first shard is in mid-restore when the victim dies.
class KilledInRestore : public Killed {
 protected:
  // Moves the slab of the first layers from the store that has both to the other one; the latter.
  static ServerProcess& Divide(CheckpointMesh& mesh) {
    mesh.store(0).Terminate();
    mesh.store(1).Terminate();
    const size_t from = mesh.SlabFiles(0).empty() ? 1 : 0;
    for (const std::string& file : mesh.SlabFiles(from)) {
      const std::filesystem::path path(file);
      if (!absl::StrContains(path.filename().string(), ".0-2.")) continue;
      const std::filesystem::path folder =
          std::filesystem::path(mesh.StoreFolder(1 - from)) /
          std::filesystem::relative(path.parent_path(), mesh.StoreFolder(from));
      std::filesystem::create_directories(folder);
      std::filesystem::rename(path, folder / path.filename());
    }
    mesh.store(0).Start();
    mesh.store(1).Start();
    mesh.AwaitReady();
    return mesh.store(1 - from);
  }
};

TEST_P(KilledInRestore, ItCostsAPrefillAtMost) {
  MeshPlan plan{.stores = {{}, {}}};
  plan.shard_flags = {"--restore-timeout", "120"};
  CheckpointMesh mesh(plan);
  const v1::GenerateRequest request = AskFor(PromptText("restores"));
  const std::vector<uint32_t> right = mesh.Ask(request).ids;
  mesh.AwaitSaved();
  ServerProcess& store = Divide(mesh);
  EXPECT_TRUE(IsWhole(mesh.Ask(request).finished.usage()));

  store.Freeze();
  std::future<Answer> answer = mesh.AskBeside(request);
  ASSERT_TRUE(WaitUntil([&] { return mesh.SomeGenerationIs("prefill"); }));
  ServerProcess& victim = GetParam() == Victim::kStore ? store : Of(mesh, GetParam());
  victim.Kill();
  victim.Start();
  if (GetParam() != Victim::kStore) store.Thaw();
  const Answer disturbed = answer.get();
  if (GetParam() == Victim::kRouter) {
    EXPECT_EQ(disturbed.status.code(), absl::StatusCode::kUnavailable) << disturbed.status;
  } else {
    EXPECT_TRUE(disturbed.status.ok()) << disturbed.status;
    EXPECT_EQ(disturbed.ids, right);
  }
  mesh.AwaitReady();
  ExpectWarmSoon(mesh, request, right);
  mesh.ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Each, Killed,
                         ::testing::Values(Victim::kRouter, Victim::kFirstShard, Victim::kTail,
                                           Victim::kMeta, Victim::kStore),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Each, KilledInRestore,
                         ::testing::Values(Victim::kRouter, Victim::kFirstShard, Victim::kTail,
                                           Victim::kMeta, Victim::kStore),
                         NameOf);

}  // namespace
}  // namespace kvmesh::process_testing
