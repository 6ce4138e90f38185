// A Generation that nothing disturbs, and how it ends.
#include "services/router/core/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/limits.h"
#include "common/base/sha256.h"
#include "tests/unit/router/generation_script.h"

namespace kvmesh::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

uint64_t DigestOf(const std::vector<uint32_t>& ids) {
  return PrefixDigest(TokensSha256(ids));
}

TEST(Generation, ThePromptIsPrefilledUnderTheFirstEpochAndAttempt) {
  GenerationScript script;
  script.Run();
  const forward::Open open = script.Only<OpenStream>().open;
  EXPECT_EQ(open.epoch, SessionEpoch{1});
  EXPECT_EQ(open.attempt, StreamAttempt{1});
  EXPECT_EQ(open.hops, TwoHops().hops);
  EXPECT_THAT(open.history, ElementsAre(1, 2, 3));
  EXPECT_EQ(open.prompt_tokens, 3u);
  EXPECT_EQ(open.reserve_tokens, 103u);
  const forward::Compute frame = script.Compute();
  EXPECT_EQ(frame.cache_mode, forward::CacheMode::kPrefill);
  EXPECT_EQ(frame.past_len, 0u);
  EXPECT_EQ(frame.step, 0u);
  EXPECT_THAT(frame.tokens, ElementsAre(1, 2, 3));
  EXPECT_EQ(frame.prefix_digest, DigestOf({}));
  EXPECT_TRUE(frame.want_logits);
  EXPECT_EQ(frame.layers, (LayerRange{0, 4}));
}

TEST(Generation, DecodeFeedsOnlyTheNewestToken) {
  GenerationScript script;
  script.Run();
  script.Token(10);
  forward::Compute frame = script.Compute();
  EXPECT_EQ(frame.cache_mode, forward::CacheMode::kDecode);
  EXPECT_EQ(frame.past_len, 3u);
  EXPECT_EQ(frame.step, 1u);
  EXPECT_THAT(frame.tokens, ElementsAre(10));
  EXPECT_EQ(frame.prefix_digest, DigestOf({1, 2, 3}));
  script.Token(11);
  frame = script.Compute();
  EXPECT_EQ(frame.past_len, 4u);
  EXPECT_EQ(frame.step, 2u);
  EXPECT_EQ(frame.prefix_digest, DigestOf({1, 2, 3, 10}));
  EXPECT_FALSE(script.Has<OpenStream>());
  EXPECT_THAT(script.sink.tokens, ElementsAre(10, 11));
}

TEST(Generation, ALongPromptGoesInChunksWithTwoInFlight) {
  constexpr size_t kTokens = limits::kChunkTokensMax * 3 + 1;
  GenerationScript script(GenerationScript::Spec(kTokens));
  script.Run();
  std::vector<forward::Compute> frames = script.Computes();
  ASSERT_THAT(frames, SizeIs(2));
  EXPECT_EQ(frames[1].past_len, limits::kChunkTokensMax);
  EXPECT_EQ(frames[1].prefix_digest, DigestOf({frames[0].tokens.begin(), frames[0].tokens.end()}));
  EXPECT_FALSE(frames[1].want_logits);
  script.Answer(forward::Ack{});
  EXPECT_THAT(script.Computes(), SizeIs(1));
  script.Answer(forward::Ack{});
  const forward::Compute last = script.Compute();
  EXPECT_THAT(last.tokens, SizeIs(1));
  EXPECT_TRUE(last.want_logits);
  EXPECT_EQ(last.step, 0u);
  script.Answer(forward::Ack{});
  EXPECT_THAT(script.Computes(), IsEmpty());
}

TEST(Generation, TheSinkEndsItAndNoFurtherStepIsSent) {
  GenerationScript script;
  script.sink.stop_after = 2;
  script.Run();
  script.Token(10);
  script.Token(11);
  EXPECT_THAT(script.Computes(), IsEmpty());
  EXPECT_TRUE(script.Dropped());
  const Done done = script.Only<Done>();
  EXPECT_TRUE(done.status.ok());
  EXPECT_EQ(done.reason, FinishReason::kStop);
  EXPECT_FALSE(script.generation.finished());
  script.End(absl::OkStatus());
  EXPECT_TRUE(script.generation.finished());
  EXPECT_FALSE(script.Has<DropSession>());
}

TEST(Generation, MaxTokensEndsItWhateverTheSinkSays) {
  GenerationScript script(GenerationScript::Spec(3, /*max_tokens=*/1));
  script.Run();
  script.Token(10);
  EXPECT_EQ(script.Only<Done>().reason, FinishReason::kLength);
}

TEST(Generation, AChainThatBreaksAfterCloseIsDroppedHopByHop) {
  GenerationScript script;
  script.sink.stop_after = 1;
  script.Run();
  script.Token(10);
  script.End(Lost());
  EXPECT_TRUE(script.generation.finished());
  const std::vector<DropSession> drops = script.All<DropSession>();
  ASSERT_THAT(drops, SizeIs(2));
  EXPECT_EQ(drops[1].hop.address, "b");
  EXPECT_EQ(drops[1].epoch, SessionEpoch{1});
}

TEST(Generation, AChainThatDoesNotEndIsDroppedAfterThirtySeconds) {
  GenerationScript script;
  script.sink.stop_after = 1;
  script.Run();
  script.Token(10);
  script.Wait();
  EXPECT_EQ(script.waited, absl::Seconds(30));
  EXPECT_THAT(script.All<DropSession>(), SizeIs(2));
  EXPECT_TRUE(script.Has<EndStream>());
  EXPECT_TRUE(script.generation.finished());
}

TEST(Generation, CancelInPrefillAndInDecodeClosesWithDrop) {
  for (const bool decode : {false, true}) {
    GenerationScript script;
    script.Run();
    if (decode) script.Token(10);
    script.effects.clear();
    script.generation.Cancel(absl::CancelledError("gone"), script.now);
    script.Collect();
    EXPECT_TRUE(script.Dropped());
    EXPECT_EQ(script.Only<Done>().status.code(), absl::StatusCode::kCancelled);
    script.Token(11);
    EXPECT_THAT(script.effects, IsEmpty());
  }
}

TEST(Generation, CancelBeforeTheStartNeedsNoShard) {
  GenerationScript script;
  script.generation.Cancel(absl::CancelledError("gone"), script.now);
  script.Collect();
  EXPECT_THAT(script.effects, SizeIs(1));
  EXPECT_TRUE(script.Has<Done>());
  EXPECT_TRUE(script.generation.finished());
}

TEST(Generation, TheDeadlineEndsIt) {
  GenerationSpec spec = GenerationScript::Spec();
  spec.deadline = absl::Seconds(1003);
  GenerationScript script(spec);
  script.Run();
  script.Token(10);
  script.Wait();
  EXPECT_EQ(script.waited, absl::Seconds(3));
  EXPECT_EQ(script.Only<Done>().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(script.Dropped());
}

TEST(Generation, TheDeadlineEndsOneThatStillWaitsForAdmission) {
  GenerationSpec spec = GenerationScript::Spec();
  spec.deadline = absl::Seconds(1003);
  GenerationScript script(spec);
  script.Wait();
  EXPECT_EQ(script.Only<Done>().status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Generation, AClientThatDoesNotReadStopsTheStepsAndIsCancelledAfterThirtySeconds) {
  GenerationScript script;
  script.Run();
  script.generation.SetReading(false, script.now);
  script.Token(10);
  EXPECT_THAT(script.Computes(), IsEmpty());
  script.effects.clear();
  script.generation.SetReading(true, script.now);
  script.Collect();
  EXPECT_EQ(script.Compute().step, 1u);

  script.generation.SetReading(false, script.now);
  script.Token(11);
  script.Wait();
  EXPECT_EQ(script.waited, absl::Seconds(30));
  EXPECT_EQ(script.Only<Done>().status.code(), absl::StatusCode::kCancelled);
}

TEST(Generation, AStatelessRouteGetsTheWholeSequenceEveryStep) {
  GenerationScript script;
  RoutePlan plan = TwoHops();
  plan.stateless = true;
  script.Run(plan);
  EXPECT_EQ(script.Only<OpenStream>().open.reserve_tokens, std::nullopt);
  script.Token(10);
  const forward::Compute frame = script.Compute();
  EXPECT_EQ(frame.cache_mode, forward::CacheMode::kStateless);
  EXPECT_EQ(frame.past_len, std::nullopt);
  EXPECT_EQ(frame.prefix_digest, std::nullopt);
  EXPECT_EQ(frame.step, 1u);
  EXPECT_THAT(frame.tokens, ElementsAre(1, 2, 3, 10));
}

TEST(Generation, ASequenceTooLongForAStatelessRouteIsRefusedWithBothNumbers) {
  GenerationScript script(GenerationScript::Spec(3, /*max_tokens=*/1000));
  RoutePlan plan = TwoHops();
  plan.stateless = true;
  plan.hidden_size = 65536;
  script.Run(plan);
  const Done done = script.Only<Done>();
  EXPECT_EQ(done.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(done.status.message()), HasSubstr("1002 tokens"));
  EXPECT_THAT(std::string(done.status.message()), HasSubstr("at most 104"));
  EXPECT_FALSE(script.Has<OpenStream>());
}

TEST(Generation, TextWithoutIdsIsPrefilledEveryStepUnderAFreshEpoch) {
  GenerationScript script(GenerationScript::Spec(), [](absl::Span<const std::string> pieces) {
    std::vector<uint32_t> ids;
    for (const std::string& piece : pieces) ids.push_back(static_cast<uint32_t>(piece[0]));
    return ids;
  });
  script.Run();
  script.Answer(forward::Output{.step = 0, .piece = "x"});
  EXPECT_EQ(script.Frames<forward::Close>()[0].disposition, forward::Disposition::kDrop);
  forward::Open open = script.Only<OpenStream>().open;
  EXPECT_EQ(open.epoch, SessionEpoch{2});
  EXPECT_EQ(open.attempt, StreamAttempt{2});
  EXPECT_THAT(open.history, ElementsAre(1, 2, 3, 'x'));
  EXPECT_EQ(script.Computes()[0].cache_mode, forward::CacheMode::kPrefill);
  EXPECT_EQ(script.Computes()[0].step, 1u);
  script.Answer(forward::Output{.step = 1, .piece = "y"});
  EXPECT_EQ(script.generation.epoch(), SessionEpoch{3});
  EXPECT_THAT(script.sink.tokens, ElementsAre('x', 'y'));
  EXPECT_EQ(script.generation.stats().reprefills, 0u);

  // A tail that gives ids again is fed them.
  script.Token(30);
  EXPECT_EQ(script.Compute().cache_mode, forward::CacheMode::kDecode);
  EXPECT_THAT(script.generation.history(), ElementsAre(1, 2, 3, 'x', 'y', 30));
}

TEST(Generation, TextThatMergesIntoOtherIdsReplacesOnlyWhatCameAsText) {
  GenerationScript script(GenerationScript::Spec(), [](absl::Span<const std::string> pieces) {
    return pieces.size() == 1 ? std::vector<uint32_t>{50} : std::vector<uint32_t>{60};
  });
  script.Run();
  script.Answer(forward::Output{.step = 0, .piece = "x"});
  script.Answer(forward::Output{.step = 1, .piece = "y"});
  EXPECT_THAT(script.generation.history(), ElementsAre(1, 2, 3, 60));
  EXPECT_THAT(script.sink.pieces, ElementsAre("x", "y"));
}

TEST(Generation, AnIdOutsideTheVocabularyIsAnErrorNotATokens) {
  GenerationScript script;
  script.Run();
  script.Token(1000);
  EXPECT_EQ(script.Only<Done>().status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(script.sink.tokens, IsEmpty());
}

TEST(Generation, AnswersOfAnOldAttemptAreIgnored) {
  GenerationScript script;
  script.Run();
  script.Token(10);
  script.End(Lost());
  ASSERT_EQ(script.generation.attempt(), StreamAttempt{2});
  script.generation.OnAnswer(StreamAttempt{1}, forward::Output{.step = 1, .token_id = 99},
                             script.now);
  script.generation.OnStreamEnd(StreamAttempt{1}, Lost(), script.now);
  EXPECT_THAT(script.generation.TakeEffects(), IsEmpty());
  EXPECT_THAT(script.sink.tokens, ElementsAre(10));
}

}  // namespace
}  // namespace kvmesh::router
