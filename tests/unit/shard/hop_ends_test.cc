// One shard with all layers: how streams and sessions end, and whose turn it is.
#include <gtest/gtest.h>

#include "services/shard/core/hop.h"
#include "tests/unit/shard/hop_harness.h"

namespace kvmesh::shard {
namespace {

using forward::Close;
using forward::Disposition;

TEST(HopEnds, CloseDropFreesTheSessionAndCancelsWhatRunsAndWaits) {
  HopHarness h;
  h.Open(1, 1, kHopPrompt);
  h.Send(1, h.Prefill(kHopPrompt, 0, 2, false));
  h.Send(1, h.Prefill(kHopPrompt, 2, 4, true));
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

TEST(HopEnds, ADroppedEpochIsSupersededAndANewerOneWelcome) {
  HopHarness h;
  RunPrompt(h);
  h.Send(1, Close{Disposition::kDrop});
  EXPECT_TRUE(h.TakeEnd()->ok());
  h.Open(2, 1, kHopPrompt, 1, 2);
  EXPECT_EQ(h.TakeEndReason(), reason::kSuperseded);
  h.Open(3, 1, kHopPrompt, 2, 3);
  EXPECT_EQ(h.TakeEndReason(), "(open)");
}

TEST(HopEnds, CloseKeepWaitsForItsTurnAndLeavesTheSessionIdle) {
  HopHarness h;
  h.Open(1, 1, kHopPrompt);
  h.Send(1, h.Prefill(kHopPrompt, 0, 4, true));
  h.Send(1, Close{Disposition::kKeep});
  EXPECT_EQ(h.RunAll(), 1);
  EXPECT_EQ(h.TakeTokens(), Generated(1));
  EXPECT_TRUE(h.TakeEnd()->ok());
  EXPECT_EQ(h.View(1)->phase, SessionPhase::kIdle);
  EXPECT_EQ(h.View(1)->held, 4u);
}

TEST(HopEnds, NothingMayFollowClose) {
  HopHarness h({0, 3});
  h.Open(1, 1, kHopPrompt);
  h.Send(1, Close{Disposition::kDrop});
  h.Send(1, h.Prefill(kHopPrompt, 0, 4, true));
  EXPECT_EQ(h.TakeEndReason(), "INVALID_ARGUMENT");
}

TEST(HopEnds, ASaveIsAnsweredAsDroppedInItsTurn) {
  HopHarness h;
  h.Open(1, 1, kHopPrompt);
  h.Send(1, h.Prefill(kHopPrompt, 0, 4, true));
  h.Send(1, forward::Save{.at_tokens = 4});
  EXPECT_TRUE(h.TakeAnswers<forward::SaveState>().empty());
  h.RunAll();
  const auto states = h.TakeAnswers<forward::SaveState>();
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0].state, forward::SaveState::State::kDropped);
  EXPECT_EQ(states[0].cause, "checkpoints_off");
  const auto off = static_cast<size_t>(SaveDrop::kCheckpointsOff);
  EXPECT_EQ(h.hop().saves().counters().dropped[off][0], 1u);
}

TEST(HopEnds, DropSessionEndsTheStreamAndFreesTheState) {
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

TEST(HopEnds, DropSessionOfAnOlderEpochLeavesTheNewerOneAlone) {
  HopHarness h;
  h.Open(1, 1, kHopPrompt, 2, 1);
  EXPECT_FALSE(h.hop().DropSession(HopHarness::Session(1), SessionEpoch{1}, h.now));
  EXPECT_TRUE(h.View(1).has_value());
  EXPECT_TRUE(h.hop().DropSession(HopHarness::Session(1), SessionEpoch{0}, h.now));
  EXPECT_FALSE(h.hop().DropSession(HopHarness::Session(1), SessionEpoch{0}, h.now));
}

TEST(HopEnds, AResultOfADroppedSessionDoesNotReachItsSuccessor) {
  HopHarness h;
  h.Open(1, 1, kHopPrompt);
  h.Send(1, h.Prefill(kHopPrompt, 0, 4, true));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Drop(1, 1);
  h.Open(2, 1, kHopPrompt, 2, 2);
  job->cancel->store(false);  // as if the engine had not looked in time
  h.Finish(*job);
  EXPECT_EQ(h.View(1)->held, 0u);
  EXPECT_TRUE(h.TakeTokens().empty());
}

TEST(HopEnds, ALiveSessionSurvivesItsTtlAndAnOrphanDoesNot) {
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

TEST(HopEnds, GetSessionKeepsAnOrphanAlive) {
  HopHarness h;
  RunPrompt(h);
  h.Lose(1);
  for (int i = 0; i < 4; ++i) {
    h.Tick(absl::Seconds(20));
    EXPECT_TRUE(h.hop().GetSession(HopHarness::Session(1), h.now).has_value());
  }
}

TEST(HopEnds, AStreamOnWhichNothingComesIsEnded) {
  HopHarness h;
  h.Open(1, 1, kHopPrompt);
  h.Tick(absl::Seconds(599));
  EXPECT_EQ(h.TakeEndReason(), "(open)");
  h.Tick(absl::Seconds(1));
  EXPECT_EQ(h.TakeEndReason(), "DEADLINE_EXCEEDED");
  EXPECT_EQ(h.View(1)->phase, SessionPhase::kOrphaned);
}

TEST(HopEnds, DrainRefusesNewStreamsAndLetsTheOutstandingAnswerPass) {
  HopHarness h;
  RunPrompt(h);
  h.Open(2, 2, kHopPrompt);
  h.Send(1, h.Decode(Sequence(1), 1));
  std::optional<Job> job = h.Start();
  h.Drain();
  const auto ends = h.Take<EndUp>();  // stream 2 has nothing outstanding
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].stream, StreamId{2});
  h.Open(3, 3, kHopPrompt);
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

TEST(HopEnds, DecodeStepsGoBeforePrefillChunksButNotForEver) {
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

TEST(HopEnds, SessionsTakeTurns) {
  HopHarness h;
  for (uint8_t s = 1; s <= 3; ++s) {
    h.Open(s, s, kHopPrompt);
    h.Send(s, h.Prefill(kHopPrompt, 0, 2, false));
    h.Send(s, h.Prefill(kHopPrompt, 2, 4, true));
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
