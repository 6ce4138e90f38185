// One shard with all layers: what frames do to a session.
#include "services/shard/core/hop.h"

#include <gtest/gtest.h>

#include "tests/unit/shard/hop_harness.h"

namespace kvmesh::shard {
namespace {

TEST(Hop, AnswersOpenedThenAckThenTheToken) {
  HopHarness h;
  h.Open(1, 1, kHopPrompt);
  const auto opened = h.TakeAnswers<forward::Opened>();
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_EQ(opened[0].held, 0u);
  h.Send(1, h.Prefill(kHopPrompt, 0, 4, true));
  EXPECT_EQ(h.RunAll(), 1);
  const auto effects = h.TakeAll();
  ASSERT_EQ(effects.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<forward::Ack>(std::get<AnswerUp>(effects[0]).answer));
  const auto& output = std::get<forward::Output>(std::get<AnswerUp>(effects[1]).answer);
  EXPECT_EQ(output.token_id, Generated(1)[0]);
  EXPECT_EQ(output.piece, testing::ToyText({Generated(1)[0]}));
  EXPECT_EQ(output.held, 4u);
}

TEST(Hop, DecodeStepsGiveWhatAnUndisturbedRunGives) {
  HopHarness h;
  RunPrompt(h);
  for (uint32_t step = 1; step < 6; ++step) {
    h.Send(1, h.Decode(Sequence(step), step));
    EXPECT_EQ(h.RunAll(), 1);
    EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(step + 1).back()});
  }
  EXPECT_EQ(h.View(1)->held, 9u);
  EXPECT_EQ(h.View(1)->last_step, 5u);
}

TEST(Hop, ChunksOfAPromptGiveTheSameTokenAsOnePiece) {
  HopHarness h;
  h.Open(1, 1, kHopPrompt);
  h.Send(1, h.Prefill(kHopPrompt, 0, 1, false));
  h.Send(1, h.Prefill(kHopPrompt, 1, 4, true));
  EXPECT_EQ(h.RunAll(), 2);
  EXPECT_EQ(h.TakeAnswers<forward::Ack>().size(), 2u);
  EXPECT_EQ(h.TakeTokens(), Generated(1));
}

TEST(Hop, StatelessFramesHoldNothing) {
  HopHarness h;
  forward::Open open = h.MakeOpen(1, kHopPrompt);
  open.reserve_tokens.reset();
  h.Send(1, open);
  for (uint32_t step = 0; step < 3; ++step) {
    const std::vector<uint32_t> all = Sequence(step);
    h.Send(1, h.Frame(forward::CacheMode::kStateless, all, 0, all.size(), step, true));
    EXPECT_EQ(h.RunAll(), 1);
    EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(step + 1).back()});
  }
  EXPECT_EQ(h.hop().store().size(), 0u);
}

TEST(Hop, AStatefulFrameOnAStatelessStreamIsRefused) {
  HopHarness h;
  forward::Open open = h.MakeOpen(1, kHopPrompt);
  open.reserve_tokens.reset();
  h.Send(1, open);
  h.Send(1, h.Prefill(kHopPrompt, 0, 4, true));
  EXPECT_EQ(h.TakeEndReason(), "INVALID_ARGUMENT");
}

TEST(Hop, CachingSwitchedOffMakesEveryStatefulFrameAMiss) {
  HopHarness h({0, 6}, HopHarness::Limits(), /*caching=*/false);
  h.Open(1, 1, kHopPrompt);
  h.Send(1, h.Prefill(kHopPrompt, 0, 4, true));
  EXPECT_EQ(h.RunAll(), 0);
  EXPECT_EQ(h.TakeMissCause(), "caching_disabled");
}

TEST(Hop, ARepeatedStepIsAnsweredWithoutRunning) {
  HopHarness h;
  RunPrompt(h);
  h.Send(1, h.Decode(Sequence(1), 1));
  h.RunAll();
  const std::vector<uint32_t> answer = h.TakeTokens();
  h.Lose(1);
  EXPECT_EQ(h.View(1)->phase, SessionPhase::kOrphaned);
  h.Open(2, 1, Sequence(1), 1, 2);
  EXPECT_EQ(h.TakeAnswers<forward::Opened>().back().last_step, 1u);
  h.Send(2, h.Decode(Sequence(1), 1));
  EXPECT_EQ(h.RunAll(), 0);
  EXPECT_EQ(h.TakeTokens(), answer);
  EXPECT_EQ(h.hop().counters().replays, 1u);
  h.Send(2, h.Decode(Sequence(2), 2));
  EXPECT_EQ(h.RunAll(), 1);
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(3).back()});
}

TEST(Hop, ADecodeStepWhoseStreamIsLostRunsToItsEnd) {
  HopHarness h;
  RunPrompt(h);
  h.Send(1, h.Decode(Sequence(1), 1));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Lose(1);
  EXPECT_FALSE(job->cancel->load());
  h.Finish(*job);
  EXPECT_EQ(h.View(1)->held, 5u);
  EXPECT_TRUE(h.TakeTokens().empty());
  h.Open(2, 1, Sequence(1), 1, 2);
  h.Send(2, h.Decode(Sequence(1), 1));
  EXPECT_EQ(h.RunAll(), 0);
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(2).back()});
}

TEST(Hop, APrefillWhoseStreamIsLostStopsAndPoisonsTheSession) {
  HopHarness h;
  h.Open(1, 1, kHopPrompt);
  h.Send(1, h.Prefill(kHopPrompt, 0, 2, false));
  h.RunAll();
  h.Send(1, h.Prefill(kHopPrompt, 2, 4, true));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Lose(1);
  EXPECT_TRUE(job->cancel->load());
  h.Finish(*job);
  EXPECT_EQ(h.hop().counters().steps_cancelled, 1u);
  EXPECT_EQ(h.View(1)->bytes, 0u);
  h.Open(2, 1, kHopPrompt, 1, 2);
  h.Send(2, h.Prefill(kHopPrompt, 2, 4, true));
  h.RunAll();
  EXPECT_EQ(h.TakeMissCause(), "poisoned");
}

TEST(Hop, ANewerEpochFencesTheOldState) {
  HopHarness h;
  RunPrompt(h);
  h.Lose(1);
  h.Open(2, 1, kHopPrompt, 2, 2);
  h.Send(2, h.Decode(Sequence(1), 1));
  h.RunAll();
  EXPECT_EQ(h.TakeMissCause(), "epoch");
  h.Open(3, 1, kHopPrompt, 2, 3);
  h.Send(3, h.Prefill(kHopPrompt, 0, 4, true));
  EXPECT_EQ(h.RunAll(), 1);
  EXPECT_EQ(h.TakeTokens(), Generated(1));
}

TEST(Hop, ANewerAttemptEndsTheOlderStreamAndALateOpenIsRefused) {
  HopHarness h;
  RunPrompt(h);
  h.Open(2, 1, kHopPrompt, 1, 3);
  const auto ends = h.Take<EndUp>();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].stream, StreamId{1});
  EXPECT_EQ(ReasonOf(ends[0].status), reason::kSuperseded);
  h.Open(3, 1, kHopPrompt, 1, 2);
  EXPECT_EQ(h.TakeEndReason(), reason::kSuperseded);
  h.Send(2, h.Decode(Sequence(1), 1));
  EXPECT_EQ(h.RunAll(), 1);
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(2).back()});
}

TEST(Hop, AWrongPastLenAndAWrongDigestAreMisses) {
  HopHarness h;
  RunPrompt(h);
  forward::Compute wrong = h.Decode(Sequence(1), 1);
  wrong.past_len = 3;
  h.Send(1, wrong);
  h.RunAll();
  EXPECT_EQ(h.TakeMissCause(), "held");
  h.Open(2, 1, kHopPrompt, 1, 2);
  wrong = h.Decode(Sequence(1), 1);
  ++*wrong.prefix_digest;
  h.Send(2, wrong);
  h.RunAll();
  EXPECT_EQ(h.TakeMissCause(), "digest");
  EXPECT_EQ(h.hop().counters().misses[static_cast<size_t>(MissCause::kHeld)], 1u);
  EXPECT_EQ(h.hop().counters().misses[static_cast<size_t>(MissCause::kDigest)], 1u);
}

TEST(Hop, AMissTellsWhatIsHeldAndWhatWasWanted) {
  HopHarness h;
  h.Open(1, 1, kHopPrompt);
  h.Send(1, h.Decode(Sequence(1), 1));
  h.RunAll();
  std::optional<ErrorInfo> info = ErrorInfoOf(*h.TakeEnd());
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->metadata["cause"], "unknown_session");
  EXPECT_EQ(info->metadata["hop"], "0");
  EXPECT_EQ(info->metadata["held"], "0");
  EXPECT_EQ(info->metadata["wanted"], "4");
}

TEST(Hop, IdsThatContradictTheHistoryAreRefused) {
  HopHarness h;
  h.Open(1, 1, kHopPrompt);
  h.Send(1, h.Prefill({5, 6, 9, 8}, 0, 4, true));
  h.RunAll();
  EXPECT_EQ(h.TakeEndReason(), "INVALID_ARGUMENT");
}

TEST(Hop, AFullHitAnswersFromTheStoredRow) {
  HopHarness h;
  RunPrompt(h);
  h.Lose(1);
  h.Open(2, 1, kHopPrompt, 1, 2);
  h.Send(2, h.Prefill(kHopPrompt, 4, 4, true));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  EXPECT_TRUE(job->from_row);
  h.Finish(*job);
  EXPECT_EQ(h.TakeTokens(), Generated(1));
  h.Send(2, h.Decode(Sequence(1), 1));
  EXPECT_EQ(h.RunAll(), 1);
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(2).back()});
}

// What a stream ends with when its job fails so.
std::optional<ErrorInfo> EndOfFailedJob(HopHarness& h, const absl::Status& failure) {
  h.Open(1, 1, kHopPrompt);
  h.Send(1, h.Prefill(kHopPrompt, 0, 4, true));
  std::optional<Job> job = h.Start();
  h.hop().OnJobDone(job->stream, {.status = failure, .frame = std::move(job->frame)}, h.now);
  h.Tick(absl::ZeroDuration());
  const std::optional<absl::Status> end = h.TakeEnd();
  EXPECT_TRUE(end.has_value());
  EXPECT_EQ(h.View(1)->held, 0u);
  return end.has_value() ? ErrorInfoOf(*end) : std::nullopt;
}

TEST(Hop, UselessLogitsEndTheGenerationAndAreCounted) {
  HopHarness h;
  const auto info = EndOfFailedJob(h, absl::InternalError("nan_logits"));
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason, reason::kBadLogits);
  EXPECT_EQ(info->metadata.at("cause"), "nan_logits");
  EXPECT_EQ(h.hop().counters().bad_logits, 1u);
}

TEST(Hop, AnEngineWithoutMemoryIsARefusalToRetry) {
  HopHarness h;
  const auto info = EndOfFailedJob(h, absl::ResourceExhaustedError("no memory"));
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason, reason::kNoRoom);
}

}  // namespace
}  // namespace kvmesh::shard
