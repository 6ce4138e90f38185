// A turn that comes while the state of the turn before it is being saved waits for it, as long as
// --session-resume-wait-ms says and no longer; and for nothing else.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/process/checkpoints/checkpoint_mesh.h"

namespace kvmesh::process_testing {
namespace {

MeshPlan WaitingFor(int milliseconds) {
  MeshPlan plan;
  plan.router_flags = {"--session-resume-wait-ms", absl::StrCat(milliseconds)};
  // Only the finish save: what is found is the parent, or nothing.
  plan.meta_flags = {"--tier-policy", "cold=ram", "--tier-policy", "continued=ram"};
  return plan;
}

v1::GenerateRequest FirstTurn() {
  return WithIds(AskFor(PromptText("a conversation")));
}

TEST(ParentKey, ATurnWaitsForTheSaveOfTheTurnBeforeIt) {
  CheckpointMesh mesh(WaitingFor(60000));
  mesh.Connect();
  mesh.store().Freeze();
  const Answer first = mesh.Ask(FirstTurn());
  ASSERT_TRUE(first.status.ok()) << first.status;
  ASSERT_EQ(first.finished.finish_key().size(), 32U);
  // Its reservation may reach the arbiter after the answer has reached the client.
  ASSERT_TRUE(WaitUntil([&] { return mesh.MetaStats().reservations() == 1; }));
  const v1::GenerateRequest next = NextTurn(first);
  std::future<Answer> second = mesh.AskBeside(next);
  EXPECT_TRUE(WaitUntil([&] { return mesh.MetaStats().waiters() == 1; }));
  EXPECT_TRUE(mesh.SomeGenerationIs("looking for a checkpoint"));
  mesh.store().Thaw();
  const Answer answer = second.get();
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.ids, mesh.Ask(Stateless(next)).ids);
  EXPECT_EQ(answer.finished.usage().outcome(), "PARTIAL");
  EXPECT_GE(answer.finished.usage().cached_tokens(),
            static_cast<uint32_t>(first.finished.effective_prompt_ids_size()));
  mesh.ExpectNothingLeft();
}

TEST(ParentKey, ASaveThatDoesNotEndIsNotWaitedForLongerThanIsSaid) {
  CheckpointMesh mesh(WaitingFor(300));
  mesh.Connect();
  mesh.store().Freeze();
  const Answer first = mesh.Ask(FirstTurn());
  ASSERT_TRUE(first.status.ok()) << first.status;
  ASSERT_TRUE(WaitUntil([&] { return mesh.MetaStats().reservations() == 1; }));
  const v1::GenerateRequest next = NextTurn(first);
  const Answer second = mesh.Ask(next);  // the store is frozen all the while
  EXPECT_TRUE(second.status.ok()) << second.status;
  EXPECT_EQ(second.finished.usage().outcome(), "COLD");
  EXPECT_EQ(second.finished.usage().cause(), "no_row");
  EXPECT_EQ(second.ids, mesh.Ask(Stateless(next)).ids);
  mesh.store().Thaw();
  mesh.ExpectNothingLeft();
}

// The wait is longer than the call may last: whoever waits for these keys fails.
TEST(ParentKey, AKeyThatNobodyWritesIsNotWaitedFor) {
  MeshPlan plan = WaitingFor(60000);
  plan.router_flags.insert(plan.router_flags.end(), {"--generation-seconds-max", "50"});
  CheckpointMesh mesh(plan);
  v1::GenerateRequest request = FirstTurn();
  request.mutable_options()->set_parent_key(std::string(32, 'k'));
  const Answer answer = mesh.Ask(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.finished.usage().cause(), "no_row");
  mesh.ExpectNothingLeft();
}

}  // namespace
}  // namespace kvmesh::process_testing
