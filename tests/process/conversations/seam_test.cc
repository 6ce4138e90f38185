// Pairs of texts whose tokenisation changes where they join, through the product: the first is
// stored, then both together are asked for.
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/process/conversations/conversation.h"
#include "tests/testing/test_data.h"

namespace kvmesh::process_testing {
namespace {

constexpr uint32_t kTokens = 4;

v1::GenerateRequest Continue(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_options()->set_max_tokens(kTokens);
  request.mutable_options()->set_ignore_eos(true);
  request.mutable_options()->set_return_token_ids(true);
  return request;
}

std::vector<uint32_t> EffectiveIds(const Answer& answer) {
  const auto& ids = answer.finished.effective_prompt_ids();
  return {ids.begin(), ids.end()};
}

// A control token of the whole that begins in the first text: then the first, as text, is no
// beginning of the whole.
bool ControlTokenAtTheJoin(const cli::Json& seam) {
  return absl::StrContains(seam["name"].get<std::string>(), "special_split");
}

class Seams : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = kvmesh::testing::TestDataRoot() / "text" / "seams" / "smollm2.json";
    seams_ = cli::Json::parse(std::ifstream(path))["cases"];
    ASSERT_GT(seams_.size(), 0U);
  }

  // `first` is stored; asks for `whole`.
  void Join(const cli::Json& seam, const std::string& first, const std::string& whole) {
    const std::vector<uint32_t> stored = mesh_.Tokenize(first);
    const std::vector<uint32_t> own = mesh_.Tokenize(whole);
    v1::GenerateRequest request = Continue(whole);
    const Answer joined = mesh_.Ask(request);
    ASSERT_TRUE(joined.status.ok()) << joined.status;
    const std::vector<uint32_t> ids = EffectiveIds(joined);
    const v1::Usage& usage = joined.finished.usage();
    EXPECT_EQ(usage.prompt_tokens(), ids.size());
    EXPECT_EQ(BytesOf(mesh_, ids), BytesOf(mesh_, own));
    EXPECT_EQ(usage.drifted_tokens() == 0, ids == own);
    if (!ControlTokenAtTheJoin(seam)) {
      EXPECT_EQ(usage.outcome(), first == whole ? "EXACT" : "PARTIAL");
      EXPECT_EQ(usage.cached_tokens(), StoredTokens(stored));
      EXPECT_TRUE(std::equal(stored.begin(), stored.begin() + usage.cached_tokens(), ids.begin()));
    } else {
      EXPECT_EQ(usage.cached_tokens(), 0U);
    }
    ExpectEqual(joined, mesh_.Ask(Uncached(request, joined, v1::CACHE_USE_STATELESS, kTokens)));
    drifted_ += ids == own ? 0 : 1;

    // The same without drift: on the caller's own tokens, whatever is stored.
    request.mutable_options()->set_require_exact_tokens(true);
    const Answer exact = mesh_.Ask(request);
    ASSERT_TRUE(exact.status.ok()) << exact.status;
    EXPECT_EQ(EffectiveIds(exact), own);
    EXPECT_EQ(exact.finished.usage().drifted_tokens(), 0U);
    if (exact.finished.usage().outcome() == "COLD" && !ControlTokenAtTheJoin(seam)) {
      EXPECT_EQ(exact.finished.usage().cause(), "restore_failed:drift");
    }
    ExpectEqual(exact, mesh_.Ask(Uncached(request, exact, v1::CACHE_USE_STATELESS, kTokens)));
  }

  // What a save behind these holds.
  uint64_t StoredTokens(const std::vector<uint32_t>& ids) {
    Answer prompt;
    prompt.ids = {0};  // was never run
    prompt.finished.mutable_effective_prompt_ids()->Add(ids.begin(), ids.end());
    return FinishTokens(mesh_, prompt);
  }

  // Whatever its length, a prompt's end is stored and found.
  StoringMesh mesh_{
      RealModel(), {"--min-tokens=1"}, {"--cold-min-tokens=1", "--restore-min-tokens=1"}};
  cli::Json seams_;
  size_t drifted_ = 0;
};

TEST_F(Seams, EveryPairThatChangesAtItsJoinGivesTheUncachedAnswer) {
  for (size_t i = 0; i < seams_.size(); ++i) {
    const cli::Json& seam = seams_[i];
    const bool changes = !seam["a_is_prefix"].get<bool>();
    if (!changes && !TestAll() && i % 8 != 0) continue;
    SCOPED_TRACE(seam["name"].get<std::string>());
    // A beginning of its own, so that no other pair's state serves.
    const std::string begin = absl::StrCat("Pair ", i, ".\n");
    const std::string first = begin + seam["a"].get<std::string>();
    v1::GenerateRequest request = Continue(first);
    request.mutable_options()->set_max_tokens(1);
    ASSERT_TRUE(mesh_.Ask(request).status.ok());
    mesh_.AwaitSaved();
    Join(seam, first, first + seam["b"].get<std::string>());
  }
  // Else these pairs show nothing.
  EXPECT_GT(drifted_, 10U);
  mesh_.ExpectNothingLeft();
}

}  // namespace
}  // namespace kvmesh::process_testing
