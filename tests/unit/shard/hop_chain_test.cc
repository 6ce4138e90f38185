// A shard with another behind it: what is sent on, what is relayed, credits, failures below.
#include <gtest/gtest.h>

#include "services/shard/core/hop.h"
#include "tests/unit/shard/hop_harness.h"

namespace kvmesh::shard {
namespace {

using forward::Close;
using forward::Compute;
using forward::Disposition;

const std::vector<uint32_t> kPrompt = {5, 6, 7, 8};
const std::vector<uint32_t> kAfterOneStep = {5, 6, 7, 8, 9};
constexpr LayerRange kFirst{0, 3};

forward::Opened OpenedBehind() {
  return {.hop_index = 1};
}

// Runs the prompt on stream 1, down to the tail's answer.
void RunPromptToTheTail(HopHarness& h) {
  h.Open(1, 1, kPrompt);
  h.Down(1, OpenedBehind());
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
  ASSERT_EQ(h.RunAll(), 1);
  h.Down(1, forward::Ack{});
  h.Down(1, forward::Output{.token_id = 9});
  h.TakeAll();
}

std::vector<Compute> TakeComputes(HopHarness& h) {
  std::vector<Compute> computes;
  for (SendDown& send : h.Take<SendDown>()) {
    if (auto* compute = std::get_if<Compute>(&send.frame)) computes.push_back(std::move(*compute));
  }
  return computes;
}

TEST(HopChain, OpenIsForwardedBeforeItIsAnswered) {
  HopHarness h(kFirst);
  h.Open(1, 1, kPrompt);
  const auto effects = h.TakeAll();
  ASSERT_EQ(effects.size(), 2u);
  const auto& down = std::get<OpenDown>(effects[0]);
  EXPECT_EQ(down.hop.address, "next");
  EXPECT_EQ(down.open.hop_index, 1u);
  ASSERT_EQ(down.open.hops.size(), 1u);
  EXPECT_EQ(down.open.hops[0], down.hop);
  EXPECT_EQ(down.open.history, kPrompt);
  EXPECT_TRUE(std::holds_alternative<forward::Opened>(std::get<AnswerUp>(effects[1]).answer));
}

TEST(HopChain, RowsAreSentOnUnderTheNextHopsLayers) {
  HopHarness h(kFirst);
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
  h.RunAll();
  const auto sent = TakeComputes(h);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].layers, (LayerRange{3, 6}));
  EXPECT_EQ(sent[0].tokens, kPrompt);
  EXPECT_EQ(sent[0].hidden.size(), 4 * testing::kToyHiddenSize * sizeof(float));
  EXPECT_TRUE(sent[0].want_logits);
  EXPECT_EQ(h.TakeAnswers<forward::Ack>().size(), 1u);
  EXPECT_TRUE(h.TakeTokens().empty());
}

TEST(HopChain, AcksStayWithTheNeighbourAndOutputsAreRelayed) {
  HopHarness h(kFirst);
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
  h.RunAll();
  h.TakeAll();
  h.Down(1, OpenedBehind());
  EXPECT_EQ(h.TakeAnswers<forward::Opened>().size(), 1u);
  h.Down(1, forward::Ack{});
  EXPECT_TRUE(h.TakeAll().empty());
  h.Down(1, forward::Output{.token_id = 9});
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{9});
}

TEST(HopChain, AThirdChunkRunsOnlyWhenTheNextHopHasAcknowledgedOne) {
  HopHarness h(kFirst);
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 1, false));
  h.Send(1, h.Prefill(kPrompt, 1, 2, false));
  EXPECT_EQ(h.RunAll(), 2);
  h.Send(1, h.Prefill(kPrompt, 2, 3, false));
  EXPECT_EQ(h.RunAll(), 0);
  h.Down(1, forward::Ack{});
  EXPECT_EQ(h.RunAll(), 1);
}

TEST(HopChain, MoreChunksThanTheCreditEndTheStream) {
  HopHarness h(kFirst);
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 1, false));
  h.Send(1, h.Prefill(kPrompt, 1, 2, false));
  EXPECT_EQ(h.TakeEndReason(), "(open)");
  h.Send(1, h.Prefill(kPrompt, 2, 3, false));
  EXPECT_EQ(h.TakeEndReason(), "INVALID_ARGUMENT");
}

TEST(HopChain, ASecondStepWithoutTheFirstOnesAnswerEndsTheStream) {
  HopHarness h(kFirst);
  RunPromptToTheTail(h);
  h.Send(1, h.Decode(kAfterOneStep, 1));
  h.RunAll();
  EXPECT_EQ(h.TakeEndReason(), "(open)");
  h.Send(1, h.Decode({5, 6, 7, 8, 9, 9}, 2));
  EXPECT_EQ(h.TakeEndReason(), "INVALID_ARGUMENT");
}

TEST(HopChain, ARepeatedStepSendsTheStoredRowOnAgain) {
  HopHarness h(kFirst);
  RunPromptToTheTail(h);
  h.Send(1, h.Decode(kAfterOneStep, 1));
  h.RunAll();
  const auto first = TakeComputes(h);
  h.Lose(1);
  EXPECT_EQ(h.Take<EndDown>().size(), 1u);
  h.Open(2, 1, kAfterOneStep, 1, 2);
  h.Send(2, h.Decode(kAfterOneStep, 1));
  EXPECT_EQ(h.RunAll(), 0);
  const auto again = TakeComputes(h);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].hidden, first[0].hidden);
  EXPECT_EQ(again[0].tokens, first[0].tokens);
  EXPECT_EQ(again[0].past_len, first[0].past_len);
}

TEST(HopChain, AFullHitIsPassedOnWithoutRunning) {
  HopHarness h(kFirst);
  RunPromptToTheTail(h);
  h.Lose(1);
  h.Open(2, 1, kPrompt, 1, 2);
  h.Send(2, h.Prefill(kPrompt, 4, 4, true));
  EXPECT_EQ(h.RunAll(), 0);
  const auto sent = TakeComputes(h);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].tokens.empty());
  EXPECT_TRUE(sent[0].hidden.empty());
  EXPECT_EQ(h.TakeAnswers<forward::Ack>().size(), 1u);
}

TEST(HopChain, CloseDropIsForwardedAtOnceAndTheStreamEndsWithTheNextHop) {
  HopHarness h(kFirst);
  h.Open(1, 1, kPrompt);
  h.Send(1, h.Prefill(kPrompt, 0, 4, true));
  std::optional<Job> job = h.Start();
  h.Send(1, forward::Save{});
  h.TakeAll();
  h.Send(1, Close{Disposition::kDrop});
  const auto sent = h.Take<SendDown>();
  ASSERT_EQ(sent.size(), 2u);  // the save is not cancelled
  EXPECT_TRUE(std::holds_alternative<forward::Save>(sent[0].frame));
  EXPECT_TRUE(std::holds_alternative<Close>(sent[1].frame));
  EXPECT_EQ(h.hop().store().size(), 0u);
  h.Finish(*job);
  EXPECT_TRUE(h.Take<SendDown>().empty());
  EXPECT_FALSE(h.TakeEnd().has_value());
  h.DownEnds(1, absl::OkStatus());
  EXPECT_TRUE(h.TakeEnd()->ok());
}

TEST(HopChain, ACallerThatLeavesAfterCloseDoesNotStopTheCloseFurtherDown) {
  HopHarness h(kFirst);
  h.Open(1, 1, kPrompt);
  h.Send(1, Close{Disposition::kDrop});
  h.Lose(1);
  EXPECT_TRUE(h.Take<EndDown>().empty());
  h.DownEnds(1, absl::OkStatus());
  EXPECT_FALSE(h.TakeEnd().has_value());
  EXPECT_TRUE(h.hop().quiet());
}

TEST(HopChain, ANextHopThatDoesNotEndAfterCloseIsCutAfterThirtySeconds) {
  HopHarness h(kFirst);
  h.Open(1, 1, kPrompt);
  h.Send(1, Close{Disposition::kDrop});
  h.Tick(absl::Seconds(29));
  EXPECT_EQ(h.TakeEndReason(), "(open)");
  h.Tick(absl::Seconds(1));
  EXPECT_EQ(h.TakeEndReason(), reason::kHopUnavailable);
  EXPECT_EQ(h.Take<EndDown>().size(), 1u);
}

TEST(HopChain, AFailureBelowIsWrappedOnce) {
  HopHarness h(kFirst);
  RunPromptToTheTail(h);
  h.DownEnds(1, absl::UnavailableError("connection refused"));
  const std::optional<absl::Status> end = h.TakeEnd();
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code(), absl::StatusCode::kUnavailable);
  std::optional<ErrorInfo> info = ErrorInfoOf(*end);
  EXPECT_EQ(info->reason, reason::kHopUnavailable);
  EXPECT_EQ(info->metadata["hop"], "1");
  EXPECT_EQ(info->metadata["address"], "next");
  EXPECT_EQ(info->metadata["instance_id"], HopHarness::Instance(2).ToHex());
  EXPECT_EQ(h.View(1)->phase, SessionPhase::kOrphaned);
}

TEST(HopChain, ACauseToldFromBelowIsPassedOnAsItIs) {
  HopHarness h(kFirst);
  RunPromptToTheTail(h);
  const absl::Status miss =
      WithErrorInfo(absl::AbortedError("miss"),
                    {.reason = std::string(reason::kCacheMiss), .metadata = {{"hop", "1"}}});
  h.DownEnds(1, miss);
  EXPECT_EQ(*h.TakeEnd(), miss);
}

TEST(HopChain, AnEndWithoutCloseIsAFailureAndAMalformedFrameTheCallersFault) {
  HopHarness h(kFirst);
  RunPromptToTheTail(h);
  h.DownEnds(1, absl::OkStatus());
  EXPECT_EQ(h.TakeEndReason(), reason::kHopUnavailable);
  h.Open(2, 1, kPrompt, 1, 2);
  h.DownEnds(2, absl::InvalidArgumentError("tokens"));
  EXPECT_EQ(h.TakeEndReason(), "INVALID_ARGUMENT");
}

TEST(HopChain, ARefusalFurtherDownFreesAtOnceWhatWasReservedHere) {
  HopHarness h(kFirst);
  h.Open(1, 1, kPrompt);
  EXPECT_EQ(h.hop().store().size(), 1u);
  h.DownEnds(1, WithErrorInfo(absl::ResourceExhaustedError("full"),
                              {.reason = std::string(reason::kNoRoom)}));
  EXPECT_EQ(h.TakeEndReason(), reason::kNoRoom);
  EXPECT_EQ(h.hop().store().size(), 0u);
}

TEST(HopChain, ARefusalOfARetryKeepsTheStateOfTheSession) {
  HopHarness h(kFirst);
  RunPromptToTheTail(h);
  h.Lose(1);
  h.Open(2, 1, kPrompt, 1, 2);
  h.DownEnds(2, absl::UnavailableError("connection refused"));
  EXPECT_EQ(h.View(1)->held, 4u);
  EXPECT_EQ(h.View(1)->phase, SessionPhase::kOrphaned);
}

TEST(HopChain, AnswersThatNothingAskedForEndTheStream) {
  for (const forward::Answer& answer :
       {forward::Answer{forward::Ack{}}, forward::Answer{forward::Output{}}}) {
    HopHarness h(kFirst);
    RunPromptToTheTail(h);
    h.Down(1, answer);
    EXPECT_EQ(h.TakeEndReason(), reason::kHopUnavailable);
    EXPECT_EQ(h.Take<EndDown>().size(), 1u);
  }
}

TEST(HopChain, DrainWaitsForTheAnswerFromBelow) {
  HopHarness h(kFirst);
  RunPromptToTheTail(h);
  h.Send(1, h.Decode(kAfterOneStep, 1));
  h.RunAll();
  h.Drain();
  EXPECT_EQ(h.TakeEndReason(), "(open)");
  h.Down(1, forward::Output{.step = 1, .token_id = 3});
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{3});
  EXPECT_EQ(h.TakeEndReason(), reason::kDraining);
  EXPECT_EQ(h.Take<EndDown>().size(), 1u);
}

TEST(HopChain, LateEventsOfEndedStreamsAreIgnored) {
  HopHarness h(kFirst);
  RunPromptToTheTail(h);
  h.Lose(1);
  h.TakeAll();
  h.Send(1, h.Decode(kAfterOneStep, 1));
  h.Send(1, Close{Disposition::kDrop});
  h.Down(1, forward::Output{});
  h.DownEnds(1, absl::OkStatus());
  h.Lose(1);
  EXPECT_TRUE(h.TakeAll().empty());
  EXPECT_TRUE(h.View(1).has_value());
}

}  // namespace
}  // namespace kvmesh::shard
