// Conversations on the real model: every turn goes on from what the one before has left, and its
// answer is, bit by bit, that of a run without checkpoints and of one without any state.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/process/conversations/conversation.h"

namespace kvmesh::process_testing {
namespace {

constexpr uint32_t kReplyTokens = 24;
constexpr uint32_t kGateTokens = 512;

const char* const kTurns[] = {
    "What is a cubit?",
    "And how long is a pace? Answer in one sentence.",
    "Who kept the rods? Write \u201cnobody\u201d if you do not know \U0001F914.",
    "List three old units.",
    "Zähle auf Deutsch bis fünf.",
    "Thank you. Say goodbye in French.",
};

// Draws, penalties and log probabilities, other ones each turn.
void Vary(size_t turn, v1::GenerateRequest* request) {
  v1::SamplingParams& sampling = *request->mutable_options()->mutable_sampling();
  sampling.set_logprobs(true);
  sampling.set_top_logprobs(5);
  if (turn % 2 == 0) return;
  sampling.set_temperature(0.8F);
  sampling.set_top_p(0.95F);
  sampling.set_top_k(50);
  sampling.set_seed(1000 + turn);
  sampling.set_repetition_penalty(1.1F);
  sampling.set_presence_penalty(0.3F);
  sampling.set_frequency_penalty(0.2F);
}

TEST(Chat, EveryTurnGoesOnFromTheOneBeforeAndIsTheUncachedAnswerToTheLastBit) {
  StoringMesh mesh(RealModel());
  Conversation chat(mesh, PromptText("measures", 3200));
  uint64_t expected = 0;
  for (size_t turn = 0; turn < std::size(kTurns); ++turn) {
    SCOPED_TRACE(absl::StrCat("turn ", turn));
    v1::GenerateRequest request = chat.Say(kTurns[turn], kReplyTokens);
    Vary(turn, &request);
    const Answer answer = mesh.Ask(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    mesh.AwaitSaved();

    const v1::Usage& usage = answer.finished.usage();
    EXPECT_EQ(usage.prompt_tokens(), answer.finished.effective_prompt_ids_size());
    EXPECT_GE(usage.prompt_tokens(), kGateTokens);
    EXPECT_EQ(usage.completion_tokens(), answer.ids.size());
    EXPECT_EQ(usage.cached_tokens(), expected);
    EXPECT_EQ(usage.outcome(), turn == 0 ? "COLD" : "PARTIAL");
    EXPECT_EQ(usage.cause(), turn == 0 ? "no_row" : "");
    if (turn > 0) EXPECT_EQ(usage.cached_by_tier().at("disk"), expected);
    EXPECT_EQ(usage.reprefills() + usage.repairs(), 0U);

    ExpectEqual(answer, mesh.Ask(Uncached(request, answer, v1::CACHE_USE_OFF, kReplyTokens)));
    const bool stateless_too = TestAll() || turn % 3 == 1;
    if (stateless_too) {
      ExpectBegins(answer, mesh.Ask(Uncached(request, answer, v1::CACHE_USE_STATELESS,
                                             TestAll() ? kReplyTokens : 2)));
    }
    expected = FinishTokens(mesh, answer);
    chat.Hear(answer);
  }
  mesh.ExpectNothingLeft();
}

size_t CommonTokens(absl::Span<const uint32_t> a, absl::Span<const uint32_t> b) {
  size_t common = 0;
  while (common < a.size() && common < b.size() && a[common] == b[common]) ++common;
  return common;
}

TEST(Chat, QuestionsBehindOneSystemPromptReuseItsAlignedPart) {
  constexpr size_t kQuestions = 20;
  constexpr size_t kSystemTokens = 1500;
  constexpr size_t kAligned = 256;
  StoringMesh mesh(RealModel());
  const std::string system =
      BytesOf(mesh, PromptIds(mesh, "the rules of the house", kSystemTokens));
  std::vector<std::vector<uint32_t>> asked;
  for (size_t i = 0; i < kQuestions; ++i) {
    SCOPED_TRACE(absl::StrCat("question ", i));
    Conversation chat(mesh, system);
    const v1::GenerateRequest request =
        chat.Say(absl::StrCat("Rule ", i * 37 % 100, ": what does it say, and why?"), 4);
    const Answer answer = mesh.Ask(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    mesh.AwaitSaved();
    const std::vector<uint32_t> ids(request.token_ids().ids().begin(),
                                    request.token_ids().ids().end());
    size_t common = 0;
    for (const auto& other : asked) common = std::max(common, CommonTokens(ids, other));
    asked.push_back(ids);
    const v1::Usage& usage = answer.finished.usage();
    EXPECT_EQ(usage.cached_tokens(), common / kAligned * kAligned);
    if (i > 0) EXPECT_GE(usage.cached_tokens(), kSystemTokens / kAligned * kAligned);
    EXPECT_EQ(usage.outcome(), i == 0 ? "COLD" : "PARTIAL");
    EXPECT_EQ(usage.drifted_tokens(), 0U);
    if (TestAll() || i % 7 == 1) {
      ExpectEqual(answer, mesh.Ask(Uncached(request, answer, v1::CACHE_USE_OFF, 4)));
    }
  }
  mesh.ExpectNothingLeft();
}

}  // namespace
}  // namespace kvmesh::process_testing
