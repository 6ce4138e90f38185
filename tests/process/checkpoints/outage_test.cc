// The arbiter or a store is gone, silent or full, before a request and in the middle of one: the
// right ids, a reason where the prompt was prefilled, and no wait beyond those that are configured.
// What is frozen stays so until the answer is here: an answer that waited for it would not come.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "tests/process/checkpoints/checkpoint_mesh.h"

namespace kvmesh::process_testing {
namespace {

void ExpectCold(const Answer& answer, const std::vector<uint32_t>& right,
                const std::vector<std::string>& causes) {
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.ids, right);
  EXPECT_EQ(answer.finished.usage().outcome(), "COLD");
  EXPECT_EQ(std::count(causes.begin(), causes.end(), answer.finished.usage().cause()), 1)
      << answer.finished.usage().cause();
  EXPECT_EQ(answer.finished.usage().reprefills(), 0U);
}

class Outage : public ::testing::Test {
 protected:
  // A mesh that has the prompt's row; its ids.
  void SaveRow() {
    right_ = mesh_.Ask(Stateless(request_)).ids;
    EXPECT_EQ(mesh_.Ask(request_).ids, right_);
    mesh_.AwaitSaved();
  }
  // An answer in whose middle `fault` meets the mesh, which has a row.
  void ExpectRightThrough(const std::function<void()>& fault) {
    const v1::GenerateRequest request = AskFor(PromptText("the middle"), 200);
    const std::vector<uint32_t> right = mesh_.Ask(Stateless(request)).ids;
    SaveRow();
    auto stub = v1::RouterService::NewStub(rpc::MakeChannel(mesh_.router().address()));
    const Answer answer = Generate(*stub, request, [&](size_t tokens) {
      if (tokens == 3) fault();
    });
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.ids, right);
  }
  // The mesh is as before: rows are found and new ones made.
  void ExpectWholeAgain() {
    mesh_.AwaitReady();
    v1::Usage usage;
    EXPECT_TRUE(WaitUntil([&] {
      const Answer answer = mesh_.Ask(request_);
      EXPECT_EQ(answer.ids, right_);
      usage = answer.finished.usage();
      return IsWhole(usage);
    })) << usage.ShortDebugString();
    mesh_.ExpectNothingLeft();
  }

  CheckpointMesh mesh_;
  const v1::GenerateRequest request_ = AskFor(PromptText("outages"));
  std::vector<uint32_t> right_;
};

TEST_F(Outage, AnArbiterThatIsGoneCostsAPrefillAndNoError) {
  SaveRow();
  mesh_.meta().Kill();
  ExpectCold(mesh_.Ask(request_), right_, {"disabled: meta unavailable"});
  mesh_.meta().Start();
  ExpectWholeAgain();
}

TEST_F(Outage, AnArbiterThatIsSilentCostsTheLookUpsDeadlineAndNoMore) {
  SaveRow();
  mesh_.meta().Freeze();
  ExpectCold(mesh_.Ask(request_), right_, {"disabled: meta unavailable"});
  mesh_.meta().Thaw();
  ExpectWholeAgain();
}

TEST_F(Outage, AStoreThatIsGoneCostsAPrefillAndNoError) {
  SaveRow();
  mesh_.store().Kill();
  // The arbiter may have seen that it went, or not yet.
  ExpectCold(mesh_.Ask(request_), right_, {"no_row", "restore_failed:store_unavailable"});
  mesh_.store().Start();
  ExpectWholeAgain();
}

TEST_F(Outage, AStoreThatIsSilentCostsTheLookUpsDeadlineAndNoMore) {
  SaveRow();
  mesh_.store().Freeze();
  ExpectCold(mesh_.Ask(request_), right_,
             {"restore_failed:slow", "restore_failed:store_unavailable"});
  mesh_.store().Thaw();
  ExpectWholeAgain();
}

// In the middle of an answer nobody waits for either of them: not a step, and not the end.
TEST_F(Outage, BothMayFallSilentInTheMiddleOfAnAnswer) {
  ExpectRightThrough([this] {
    mesh_.meta().Freeze();
    mesh_.store().Freeze();
  });
  mesh_.store().Thaw();
  mesh_.meta().Thaw();
  ExpectWholeAgain();
}

TEST_F(Outage, BothMayDieInTheMiddleOfAnAnswer) {
  ExpectRightThrough([this] {
    mesh_.meta().Kill();
    mesh_.store().Kill();
  });
  mesh_.meta().Start();
  mesh_.store().Start();
  ExpectWholeAgain();
}

// ---- Room ----

TEST(Room, ABudgetThatHoldsNoRowDropsEverySaveByNameAndNothingElse) {
  CheckpointMesh mesh({.stores = {{.budget_bytes = 16 << 10}}});
  const v1::GenerateRequest request = AskFor(PromptText("no room at all"));
  const std::vector<uint32_t> right = mesh.Ask(Stateless(request)).ids;
  for (int i = 0; i < 3; ++i) ExpectCold(mesh.Ask(request), right, {"no_row"});
  mesh.AwaitSaved();
  EXPECT_EQ(mesh.router().Metric("kvmesh_router_saves_total{reason=\"cold\",result=\"too_large\"}"),
            3);
  EXPECT_TRUE(mesh.SlabFiles().empty());
  mesh.ExpectNothingLeft();
}

// Room for one row, or a few: every prompt pushes others out.
TEST(Room, ABudgetOfAFewRowsIsNeverPassedAndEvictsTheOldest) {
  constexpr uint64_t kBudget = 400 << 10;
  CheckpointMesh mesh({.stores = {{.budget_bytes = kBudget}}});
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::vector<uint32_t>> right;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(AskFor(PromptText(absl::StrCat("room ", i)), 1));
    right.push_back(mesh.Ask(Stateless(requests.back())).ids);
  }
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answer answer = mesh.Ask(requests[i]);
      EXPECT_TRUE(answer.status.ok()) << answer.status;
      EXPECT_EQ(answer.ids, right[i]);
      mesh.AwaitSaved();
      // The newest is there, whatever it pushed out.
      const Answer again = mesh.Ask(requests[i]);
      EXPECT_EQ(again.ids, right[i]);
      EXPECT_TRUE(IsWhole(again.finished.usage())) << again.finished.usage().ShortDebugString();
      const v1::StoreStatus store = mesh.MetaStats().stores(0);
      EXPECT_LE(store.live_bytes() + store.in_flight_bytes() + store.deleting_bytes() +
                    store.quarantined_bytes(),
                kBudget);
    }
  }
  EXPECT_GT(mesh.MetaStats().counts().at("rows_evicted"), 0U);
  mesh.ExpectNothingLeft();
}

}  // namespace
}  // namespace kvmesh::process_testing
