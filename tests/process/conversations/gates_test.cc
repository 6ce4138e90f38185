// Both sides of every gate, through the product: what is saved, what is found, and from where.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/process/conversations/conversation.h"

namespace kvmesh::process_testing {
namespace {

// The answer when everything that it saves is stored.
Answer AskAndSave(StoringMesh& mesh, const v1::GenerateRequest& request) {
  Answer answer = mesh.Ask(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  mesh.AwaitSaved();
  return answer;
}

void ExpectCached(const Answer& answer, uint64_t tokens, const std::string& outcome,
                  const std::string& cause = "") {
  const v1::Usage& usage = answer.finished.usage();
  EXPECT_EQ(usage.cached_tokens(), tokens);
  EXPECT_EQ(usage.outcome(), outcome);
  EXPECT_EQ(usage.cause(), cause);
}

TEST(Gates, OfTheRealModelAreThoseOfTheDesign) {
  StoringMesh mesh(RealModel());
  for (const uint64_t tokens : {511, 512, 513}) {
    SCOPED_TRACE(absl::StrCat(tokens, " tokens"));
    const std::vector<uint32_t> ids = PromptIds(mesh, absl::StrCat("prompt of ", tokens), tokens);
    // One token: what is held at the end is the prompt alone.
    const Answer cold = AskAndSave(mesh, AskForIds(ids, 1));
    ExpectCached(cold, 0, "COLD", "no_row");
    const Answer again = AskAndSave(mesh, AskForIds(ids, 1));
    EXPECT_EQ(again.ids, cold.ids);
    if (tokens < 512) {
      ExpectCached(again, 0, "COLD", "no_row");
    } else {
      ExpectCached(again, tokens, "EXACT");
    }
  }
  // Prompts that go on differently: the cut points stand at multiples of 256 from 512 on.
  const std::vector<uint32_t> long_ids = PromptIds(mesh, "cut points", 800);
  AskAndSave(mesh, AskForIds(long_ids, 1));
  for (const size_t shared : {511, 512, 767, 768}) {
    SCOPED_TRACE(absl::StrCat(shared, " tokens are shared"));
    std::vector<uint32_t> ids(long_ids.begin(), long_ids.begin() + static_cast<ptrdiff_t>(shared));
    const std::vector<uint32_t> other = PromptIds(mesh, absl::StrCat("else ", shared), 40);
    ASSERT_NE(other.front(), long_ids[shared]);
    ids.insert(ids.end(), other.begin(), other.end());
    const Answer answer = AskAndSave(mesh, AskForIds(ids, 1));
    if (shared < 512) {
      ExpectCached(answer, 0, "COLD", "no_row");
    } else {
      ExpectCached(answer, shared / 256 * 256, "PARTIAL");
    }
    EXPECT_EQ(answer.ids, mesh.Ask(Uncached(AskForIds(ids, 1), answer, v1::CACHE_USE_OFF, 1)).ids);
  }
}

// Gates that a tiny prompt passes.
constexpr uint32_t kMin = 16;
constexpr uint32_t kAlign = 16;
constexpr uint32_t kRestoreMin = 8;
constexpr uint32_t kColdMin = 24;
constexpr uint32_t kColdMax = 64;

class LoweredGates : public ::testing::Test {
 protected:
  StoringMesh mesh_{
      TinyModel(),
      {absl::StrCat("--min-tokens=", kMin), absl::StrCat("--boundary-align-tokens=", kAlign)},
      {absl::StrCat("--restore-min-tokens=", kRestoreMin),
       absl::StrCat("--cold-min-tokens=", kColdMin), absl::StrCat("--cold-max-tokens=", kColdMax)}};
};

TEST_F(LoweredGates, HoldOnBothSides) {
  for (const uint64_t tokens : {7, 8, 15, 16, 23, 24, 25, 63, 64, 65, 90}) {
    SCOPED_TRACE(absl::StrCat(tokens, " tokens"));
    const v1::GenerateRequest request =
        AskForIds(PromptIds(mesh_, absl::StrCat("gate ", tokens), tokens), 1);
    const Answer cold = AskAndSave(mesh_, request);
    const Answer again = AskAndSave(mesh_, request);
    EXPECT_EQ(again.ids, cold.ids);
    const std::string cause = tokens < kRestoreMin ? "too_short" : "no_row";
    ExpectCached(cold, 0, "COLD", cause);
    // From kMin on the end of the answer is saved, from kColdMin on the prompt too, up to kColdMax;
    // here both are at the prompt's end, as far as they go.
    if (tokens < kMin) {
      ExpectCached(again, 0, "COLD", cause);
    } else {
      ExpectCached(again, tokens, "EXACT");
    }
  }
}

TEST_F(LoweredGates, APromptBeyondColdMaxIsSavedUpToThereUntilItsAnswerEnds) {
  const std::vector<uint32_t> ids = PromptIds(mesh_, "a long prompt", 90);
  v1::GenerateRequest request = AskForIds(ids, 1);
  AskAndSave(mesh_, request);
  std::vector<uint64_t> rows;
  for (const v1::RowSummary& row : mesh_.Rows()) rows.push_back(row.row().token_count());
  std::sort(rows.begin(), rows.end());
  EXPECT_EQ(rows, (std::vector<uint64_t>{kColdMax, 90}));
}

TEST_F(LoweredGates, CutPointsStandAtEveryAlignedLengthOnBothSides) {
  const std::vector<uint32_t> saved = PromptIds(mesh_, "cuts", 50);
  AskAndSave(mesh_, AskForIds(saved, 1));
  for (const size_t shared : {15, 16, 17, 31, 32, 33, 47, 48, 49, 50}) {
    SCOPED_TRACE(absl::StrCat(shared, " tokens are shared"));
    std::vector<uint32_t> ids(saved.begin(), saved.begin() + static_cast<ptrdiff_t>(shared));
    // Too few tokens behind it for a cold save, and none that is in the text.
    const std::vector<uint32_t> other = mesh_.Tokenize(absl::StrCat("#", shared));
    std::copy_if(other.begin(), other.end(), std::back_inserter(ids), [&saved](uint32_t id) {
      return std::find(saved.begin(), saved.end(), id) == saved.end();
    });
    ASSERT_GT(ids.size(), shared);
    v1::GenerateRequest request = AskForIds(ids, 3);
    const Answer answer = mesh_.Ask(request);
    const uint64_t cached = shared == saved.size() ? shared : shared / kAlign * kAlign;
    if (cached < kMin) {
      ExpectCached(answer, 0, "COLD", "no_row");
    } else {
      ExpectCached(answer, cached, "PARTIAL");
    }
    EXPECT_EQ(answer.finished.usage().drifted_tokens(), 0U);
    EXPECT_EQ(answer.ids, mesh_.Ask(Uncached(request, answer, v1::CACHE_USE_STATELESS, 3)).ids);
    mesh_.AwaitSaved();
  }
}

}  // namespace
}  // namespace kvmesh::process_testing
