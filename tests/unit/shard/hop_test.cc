// One shard with all layers: what frames do to a session.
#include "services/shard/core/hop.h"

#include <gtest/gtest.h>

#include "tests/unit/shard/hop_harness.h"

namespace kvmesh::shard {
namespace {

using forward::Close;
using forward::Disposition;

const std::vector<uint32_t> kPrompt = {5, 6, 7, 8};

// The first `count` tokens that the toy model gives after kPrompt, and the whole sequence with
// them.
std::vector<uint32_t> Generated(uint32_t count) {
  return testing::ToyGenerate(kPrompt, count);
}
std::vector<uint32_t> Sequence(uint32_t generated) {
  std::vector<uint32_t> all = kPrompt;
  const std::vector<uint32_t> more = Generated(generated);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Opens stream 1 for session 1 and runs the prompt.
void RunPrompt(HopHarness& h) {
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
  ASSERT_EQ(h.RunAll(), 1);
  ASSERT_EQ(h.TakeTokens(), Generated(1));
}

TEST(Hop, AnswersOpenedThenAckThenTheToken) {
  HopHarness h;
  h.Open(1, 1, kPrompt);
  const auto opened = h.TakeAnswers<forward::Opened>();
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_EQ(opened[0].held, 0u);
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
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
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 1, false));
  h.Send(1, h.Prefill(kPrompt, 1, 4, true));
  EXPECT_EQ(h.RunAll(), 2);
  EXPECT_EQ(h.TakeAnswers<forward::Ack>().size(), 2u);
  EXPECT_EQ(h.TakeTokens(), Generated(1));
}

TEST(Hop, StatelessFramesHoldNothing) {
  HopHarness h;
  forward::Open open = h.MakeOpen(1, kPrompt);
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
  forward::Open open = h.MakeOpen(1, kPrompt);
  open.reserve_tokens.reset();
  h.Send(1, open);
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
  EXPECT_EQ(h.TakeEndReason(), "INVALID_ARGUMENT");
}

TEST(Hop, CachingSwitchedOffMakesEveryStatefulFrameAMiss) {
  HopHarness h({0, 6}, HopHarness::Limits(), /*caching=*/false);
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
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
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 2, false));
  h.RunAll();
  h.Send(1, h.Prefill(kPrompt, 2, 4, true));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Lose(1);
  EXPECT_TRUE(job->cancel->load());
  h.Finish(*job);
  EXPECT_EQ(h.hop().counters().steps_cancelled, 1u);
  EXPECT_EQ(h.View(1)->bytes, 0u);
  h.Open(2, 1, kPrompt, 1, 2);
  h.Send(2, h.Prefill(kPrompt, 2, 4, true));
  h.RunAll();
  EXPECT_EQ(h.TakeMissCause(), "poisoned");
}

TEST(Hop, ANewerEpochFencesTheOldState) {
  HopHarness h;
  RunPrompt(h);
  h.Lose(1);
  h.Open(2, 1, kPrompt, 2, 2);
  h.Send(2, h.Decode(Sequence(1), 1));
  h.RunAll();
  EXPECT_EQ(h.TakeMissCause(), "epoch");
  h.Open(3, 1, kPrompt, 2, 3);
  h.Send(3, h.Prefill(kPrompt, 0, 4, true));
  EXPECT_EQ(h.RunAll(), 1);
  EXPECT_EQ(h.TakeTokens(), Generated(1));
}

TEST(Hop, ANewerAttemptEndsTheOlderStreamAndALateOpenIsRefused) {
  HopHarness h;
  RunPrompt(h);
  h.Open(2, 1, kPrompt, 1, 3);
  const auto ends = h.Take<EndUp>();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].stream, StreamId{1});
  EXPECT_EQ(ReasonOf(ends[0].status), reason::kSuperseded);
  h.Open(3, 1, kPrompt, 1, 2);
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
  h.Open(2, 1, kPrompt, 1, 2);
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
  h.Open(1, 1, kPrompt);
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
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill({5, 6, 9, 8}, 0, 4, true));
  h.RunAll();
  EXPECT_EQ(h.TakeEndReason(), "INVALID_ARGUMENT");
}

TEST(Hop, AFullHitAnswersFromTheStoredRow) {
  HopHarness h;
  RunPrompt(h);
  h.Lose(1);
  h.Open(2, 1, kPrompt, 1, 2);
  h.Send(2, h.Prefill(kPrompt, 4, 4, true));
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
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
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

TEST(Hop, CloseDropFreesTheSessionAndCancelsWhatRunsAndWaits) {
  HopHarness h;
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 2, false));
  h.Send(1, h.Prefill(kPrompt, 2, 4, true));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Send(1, Close{Disposition::kDrop});
  EXPECT_TRUE(job->cancel->load());
  EXPECT_EQ(h.hop().store().size(), 0u);
  EXPECT_TRUE(h.TakeEnd()->ok());
  h.Finish(*job);
  EXPECT_EQ(h.RunAll(), 0);
  EXPECT_TRUE(h.TakeTokens().empty());
  EXPECT_TRUE(h.hop().quiet());
}

TEST(Hop, ADroppedEpochIsSupersededAndANewerOneWelcome) {
  HopHarness h;
  RunPrompt(h);
  h.Send(1, Close{Disposition::kDrop});
  EXPECT_TRUE(h.TakeEnd()->ok());
  h.Open(2, 1, kPrompt, 1, 2);
  EXPECT_EQ(h.TakeEndReason(), reason::kSuperseded);
  h.Open(3, 1, kPrompt, 2, 3);
  EXPECT_EQ(h.TakeEndReason(), "(open)");
}

TEST(Hop, CloseKeepWaitsForItsTurnAndLeavesTheSessionIdle) {
  HopHarness h;
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
  h.Send(1, Close{Disposition::kKeep});
  EXPECT_EQ(h.RunAll(), 1);
  EXPECT_EQ(h.TakeTokens(), Generated(1));
  EXPECT_TRUE(h.TakeEnd()->ok());
  EXPECT_EQ(h.View(1)->phase, SessionPhase::kIdle);
  EXPECT_EQ(h.View(1)->held, 4u);
}

TEST(Hop, NothingMayFollowClose) {
  HopHarness h({0, 3});
  h.Open(1, 1, kPrompt);
  h.Send(1, Close{Disposition::kDrop});
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
  EXPECT_EQ(h.TakeEndReason(), "INVALID_ARGUMENT");
}

TEST(Hop, ASaveIsAnsweredAsDroppedInItsTurn) {
  HopHarness h;
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
  h.Send(1, forward::Save{.at_tokens = 4});
  EXPECT_TRUE(h.TakeAnswers<forward::SaveState>().empty());
  h.RunAll();
  const auto states = h.TakeAnswers<forward::SaveState>();
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0].state, forward::SaveState::State::kDropped);
  EXPECT_EQ(h.hop().counters().saves_dropped, 1u);
}

TEST(Hop, DropSessionEndsTheStreamAndFreesTheState) {
  HopHarness h;
  RunPrompt(h);
  h.Send(1, h.Decode(Sequence(1), 1));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Drop(1, 1);
  EXPECT_TRUE(job->cancel->load());
  EXPECT_EQ(h.TakeEndReason(), reason::kSuperseded);
  EXPECT_EQ(h.hop().store().size(), 0u);
  h.Finish(*job);
  EXPECT_EQ(h.hop().store().size(), 0u);
}

TEST(Hop, DropSessionOfAnOlderEpochLeavesTheNewerOneAlone) {
  HopHarness h;
  h.Open(1, 1, kPrompt, 2, 1);
  EXPECT_FALSE(h.hop().DropSession(HopHarness::Session(1), SessionEpoch{1}, h.now));
  EXPECT_TRUE(h.View(1).has_value());
  EXPECT_TRUE(h.hop().DropSession(HopHarness::Session(1), SessionEpoch{0}, h.now));
  EXPECT_FALSE(h.hop().DropSession(HopHarness::Session(1), SessionEpoch{0}, h.now));
}

TEST(Hop, AResultOfADroppedSessionDoesNotReachItsSuccessor) {
  HopHarness h;
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Drop(1, 1);
  h.Open(2, 1, kPrompt, 2, 2);
  job->cancel->store(false);  // as if the engine had not looked in time
  h.Finish(*job);
  EXPECT_EQ(h.View(1)->held, 0u);
  EXPECT_TRUE(h.TakeTokens().empty());
}

TEST(Hop, ALiveSessionSurvivesItsTtlAndAnOrphanDoesNot) {
  HopHarness h;
  RunPrompt(h);
  h.Tick(absl::Seconds(599));
  EXPECT_TRUE(h.View(1).has_value());
  h.Lose(1);
  h.Tick(absl::Seconds(29));
  EXPECT_TRUE(h.View(1).has_value());
  h.Tick(absl::Seconds(1));
  EXPECT_FALSE(h.View(1).has_value());
}

TEST(Hop, GetSessionKeepsAnOrphanAlive) {
  HopHarness h;
  RunPrompt(h);
  h.Lose(1);
  for (int i = 0; i < 4; ++i) {
    h.Tick(absl::Seconds(20));
    EXPECT_TRUE(h.hop().GetSession(HopHarness::Session(1), h.now).has_value());
  }
}

TEST(Hop, AStreamOnWhichNothingComesIsEnded) {
  HopHarness h;
  h.Open(1, 1, kPrompt);
  h.Tick(absl::Seconds(599));
  EXPECT_EQ(h.TakeEndReason(), "(open)");
  h.Tick(absl::Seconds(1));
  EXPECT_EQ(h.TakeEndReason(), "DEADLINE_EXCEEDED");
  EXPECT_EQ(h.View(1)->phase, SessionPhase::kOrphaned);
}

TEST(Hop, DrainRefusesNewStreamsAndLetsTheOutstandingAnswerPass) {
  HopHarness h;
  RunPrompt(h);
  h.Open(2, 2, kPrompt);
  h.Send(1, h.Decode(Sequence(1), 1));
  std::optional<Job> job = h.Start();
  h.Drain();
  const auto ends = h.Take<EndUp>();  // stream 2 has nothing outstanding
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].stream, StreamId{2});
  h.Open(3, 3, kPrompt);
  EXPECT_EQ(h.TakeEndReason(), reason::kDraining);
  h.Finish(*job);
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(2).back()});
  const std::optional<absl::Status> end = h.TakeEnd();
  ASSERT_TRUE(end.has_value());
  std::optional<ErrorInfo> info = ErrorInfoOf(*end);
  EXPECT_EQ(info->reason, reason::kDraining);
  EXPECT_EQ(info->metadata["held"], "5");
  EXPECT_EQ(info->metadata["tokens_sha256"], TokensSha256(Sequence(1)).ToHex());
  EXPECT_TRUE(h.hop().quiet());
}

TEST(Hop, DecodeStepsGoBeforePrefillChunksButNotForEver) {
  HopHarness h;
  RunPrompt(h);
  std::vector<uint32_t> long_prompt(150, 3);
  h.Open(2, 2, long_prompt);
  h.Send(2, h.Prefill(long_prompt, 0, 50, false));
  uint32_t decodes = 0;
  for (uint32_t step = 1; step <= 20; ++step) {
    h.Send(1, h.Decode(Sequence(step), step));
    std::optional<Job> job = h.Start();
    ASSERT_TRUE(job.has_value());
    const bool decode = job->stream == StreamId{1};
    h.Finish(*job);
    if (!decode) break;
    ++decodes;
  }
  EXPECT_EQ(decodes, 8u);
}

TEST(Hop, SessionsTakeTurns) {
  HopHarness h;
  for (uint8_t s = 1; s <= 3; ++s) {
    h.Open(s, s, kPrompt);
    h.Send(s, h.Prefill(kPrompt, 0, 2, false));
    h.Send(s, h.Prefill(kPrompt, 2, 4, true));
  }
  std::vector<StreamId> order;
  while (std::optional<Job> job = h.Start()) {
    order.push_back(job->stream);
    h.Finish(*job);
  }
  EXPECT_EQ(order, (std::vector<StreamId>{StreamId{1}, StreamId{2}, StreamId{3}, StreamId{1},
                                          StreamId{2}, StreamId{3}}));
}

}  // namespace
}  // namespace kvmesh::shard
