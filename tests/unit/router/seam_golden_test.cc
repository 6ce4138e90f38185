// The pairs of text/seams, whose tokenisation changes at the join: the stored prefix is what A was
// saved as, the prompt is A+B as its caller tokenises it.
#include <gtest/gtest.h>

#include "services/router/core/seam.h"
#include "tests/unit/text/text_fixtures.h"

namespace kvmesh::router {
namespace {

using Ids = std::vector<uint32_t>;

std::string KeyTextOf(const text::Tokenizer& tokenizer, const Ids& ids) {
  return std::string(MakePromptText(ids, tokenizer).text.text());
}

// How many cases joined only by tokenising anew, over all files.
size_t retokenised = 0;

void RunSeamCase(const text::Json& test_case, const text::Tokenizer& tokenizer) {
  const Ids stored = test_case["ids_a"].get<Ids>();
  const PromptText prompt = MakePromptText(test_case["ids_ab"].get<Ids>(), tokenizer);
  const std::string text_a = KeyTextOf(tokenizer, stored);
  const absl::StatusOr<Seam> seam = JoinSeam(tokenizer, prompt, stored, text_a.size());
  if (prompt.text.text().substr(0, text_a.size()) != text_a) {
    EXPECT_TRUE(absl::IsDataLoss(seam.status()) || absl::IsInvalidArgument(seam.status()));
    return;
  }
  if (!seam.ok()) {
    // A cut inside a character or a token, or a tokenizer that puts a space before every text.
    EXPECT_TRUE(absl::IsFailedPrecondition(seam.status())) << seam.status();
    EXPECT_FALSE(test_case["a_is_prefix"].get<bool>());
    return;
  }
  EXPECT_TRUE(std::equal(stored.begin(), stored.end(), seam->ids.begin()));
  EXPECT_EQ(KeyTextOf(tokenizer, seam->ids), prompt.text.text());
  EXPECT_EQ(seam->drifted_tokens == 0, seam->ids == prompt.ids);
  if (test_case["a_is_prefix"].get<bool>()) {
    EXPECT_EQ(seam->ids, prompt.ids);
  }
  if (!test_case["seam_is_token_edge_of_ab"].get<bool>()) ++retokenised;
}

TEST(SeamGolden, AJoinedPromptKeepsItsBytesAndACallersBoundaryItsIds) {
  text::RunGoldens("seams", [](const std::filesystem::path& path) -> size_t {
    const text::Json golden = text::ReadJson(path);
    const auto tokenizer = text::LoadFixtureTokenizer(golden["tokenizer"].get<std::string>());
    if (tokenizer == nullptr) return 0;
    return text::RunCases(golden,
                          [&](const text::Json& test_case) { RunSeamCase(test_case, *tokenizer); });
  });
  EXPECT_GT(retokenised, 0u);
}

}  // namespace
}  // namespace kvmesh::router
