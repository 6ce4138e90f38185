// Many at once on one prompt: one row, equal ids, no error, and those who lost the race to write
// it are counted.
#include <gtest/gtest.h>

#include <future>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/process/checkpoints/checkpoint_mesh.h"

namespace kvmesh::process_testing {
namespace {

constexpr size_t kClients = 10;

double SavesOf(CheckpointMesh& mesh, const std::string& reason, const std::string& result) {
  double sum = 0;
  for (const size_t router : {0, 1}) {
    sum += mesh.router(router).Metric(
        absl::StrCat("kvmesh_router_saves_total{reason=\"", reason, "\",result=\"", result, "\"}"));
  }
  return sum;
}

TEST(Crowd, TwoRoutersAndTenClientsOnOnePromptLeaveOneRowOfEachBoundary) {
  MeshPlan plan{.routers = 2};
  plan.shard_flags = {"--kv-max-sessions", "16"};
  CheckpointMesh mesh(plan);
  mesh.Connect();
  const v1::GenerateRequest request = AskFor(PromptText("a crowd"));
  const std::vector<uint32_t> right = mesh.Ask(Stateless(request)).ids;
  // A store that takes nothing yet keeps the first write under way until all have come.
  mesh.store().Freeze();
  std::vector<std::future<Answer>> answers;
  for (size_t i = 0; i < kClients; ++i) answers.push_back(mesh.AskBeside(request, i % 2));
  for (std::future<Answer>& one : answers) {
    const Answer answer = one.get();
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.ids, right);
  }
  mesh.store().Thaw();
  mesh.AwaitSaved();
  // The prompt's end, and that of prompt and answer.
  std::set<std::string> keys;
  for (const v1::RowSummary& row : mesh.Rows()) keys.insert(row.row().key());
  EXPECT_EQ(mesh.Rows().size(), 2U);
  EXPECT_EQ(keys.size(), 2U);
  for (const std::string reason : {"cold", "finish"}) {
    // And what each router saved to be connected.
    EXPECT_EQ(SavesOf(mesh, reason, "started"), 1 + 2) << reason;
    EXPECT_EQ(SavesOf(mesh, reason, "being_written"), kClients - 1) << reason;
  }
  // And again, all at once from what is stored.
  answers.clear();
  for (size_t i = 0; i < kClients; ++i) answers.push_back(mesh.AskBeside(request, i % 2));
  for (std::future<Answer>& one : answers) {
    const Answer answer = one.get();
    EXPECT_EQ(answer.ids, right);
    EXPECT_TRUE(IsWhole(answer.finished.usage()));
  }
  EXPECT_EQ(mesh.Rows().size(), 2U);
  mesh.ExpectNothingLeft();
}

}  // namespace
}  // namespace kvmesh::process_testing
