// What a Generation does when links break, state is lost, shards die, refuse or hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/router/generation_script.h"

namespace kvmesh::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Status Refused(absl::optional<absl::Duration> delay) {
  absl::Status status =
      WithErrorInfo(absl::ResourceExhaustedError("full"), {.reason = std::string(reason::kNoRoom)});
  return delay.has_value() ? WithRetryDelay(status, *delay) : status;
}

absl::Status WithReason(absl::Status status, absl::string_view reason, const std::string& hop) {
  return WithErrorInfo(std::move(status),
                       {.reason = std::string(reason), .metadata = {{"hop", hop}}});
}

// Prompt of three tokens, then 10 and 11; step 2 is in flight.
class GenerationFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    script_.Run();
    script_.Token(10);
    script_.Token(11);
  }
  GenerationScript script_;
};

TEST_F(GenerationFaults, ABrokenLinkInDecodeRepeatsTheStepUnderTheSameEpoch) {
  script_.End(Lost());
  const forward::Open open = script_.Only<OpenStream>().open;
  EXPECT_EQ(open.epoch, SessionEpoch{1});
  EXPECT_EQ(open.attempt, StreamAttempt{2});
  EXPECT_THAT(open.history, ElementsAre(1, 2, 3, 10, 11));
  const forward::Compute frame = script_.Compute();
  EXPECT_EQ(frame.cache_mode, forward::CacheMode::kDecode);
  EXPECT_EQ(frame.step, 2u);
  EXPECT_EQ(frame.past_len, 4u);
  script_.Token(12);
  EXPECT_THAT(script_.sink.tokens, ElementsAre(10, 11, 12));
  EXPECT_EQ(script_.generation.stats().reprefills, 0u);
  EXPECT_EQ(script_.generation.stats().link_retries, 1u);
}

TEST_F(GenerationFaults, AStreamThatEndsWellWithoutCloseIsABrokenLink) {
  script_.End(absl::OkStatus());
  EXPECT_EQ(script_.Compute().cache_mode, forward::CacheMode::kDecode);
}

TEST_F(GenerationFaults, ASecondBreakWithoutATokenPlansAgainWithTheHopAvoided) {
  script_.End(HopUnavailable("b"));
  script_.End(HopUnavailable("b"));
  const RouteRequest request = script_.Only<NeedRoute>().request;
  ASSERT_THAT(request.avoid, SizeIs(1));
  EXPECT_EQ(request.avoid[0].address, "b");
  ASSERT_TRUE(request.pin.has_value());
  EXPECT_EQ(request.pin->quant, "q");

  RoutePlan other = TwoHops();
  other.hops[1] = Hop("c", 4, 8);
  script_.Route(other);
  const forward::Open open = script_.Only<OpenStream>().open;
  EXPECT_EQ(open.epoch, SessionEpoch{2});
  EXPECT_EQ(open.attempt, StreamAttempt{3});
  const forward::Compute frame = script_.Compute();
  EXPECT_EQ(frame.cache_mode, forward::CacheMode::kPrefill);
  EXPECT_EQ(frame.step, 2u);
  EXPECT_THAT(frame.tokens, ElementsAre(1, 2, 3, 10, 11));
  script_.Token(12);
  EXPECT_EQ(script_.generation.stats().reprefills, 1u);
  EXPECT_EQ(script_.Compute().step, 3u);
}

TEST_F(GenerationFaults, TheSameRouteAfterALongBreakStillNeedsNoPrefill) {
  script_.End(Lost());
  script_.End(Lost());
  script_.Route(TwoHops());
  EXPECT_EQ(script_.Compute().cache_mode, forward::CacheMode::kDecode);
  EXPECT_EQ(script_.Only<OpenStream>().open.epoch, SessionEpoch{1});
}

TEST_F(GenerationFaults, RoundsWithoutATokenAreFurtherAndFurtherApart) {
  script_.End(Lost());
  script_.End(Lost());
  script_.Route(TwoHops());
  absl::Duration before;
  for (int round = 0; round < 10; ++round) {
    script_.End(Lost());
    ASSERT_FALSE(script_.Has<NeedRoute>());
    script_.Wait();
    if (round < 4) {
      EXPECT_GT(script_.waited, before);
    }
    EXPECT_LE(script_.waited, 1.25 * script_.limits.backoff_max);
    before = script_.waited;
    script_.Route(TwoHops());
  }
  EXPECT_GE(before, 0.75 * script_.limits.backoff_max);
}

TEST_F(GenerationFaults, ACacheMissCostsOnePrefillUnderTheNextEpoch) {
  script_.End(Miss("evicted_ttl"));
  EXPECT_EQ(script_.Only<Event>().detail, "evicted_ttl");
  const forward::Open open = script_.Only<OpenStream>().open;
  EXPECT_EQ(open.session, script_.generation.spec().session);
  EXPECT_EQ(open.epoch, SessionEpoch{2});
  EXPECT_EQ(open.attempt, StreamAttempt{2});
  EXPECT_EQ(script_.Compute().step, 2u);
  EXPECT_EQ(script_.Compute().past_len, 0u);
  script_.Token(12);
  EXPECT_THAT(script_.sink.tokens, ElementsAre(10, 11, 12));
  EXPECT_EQ(script_.generation.stats().cache_misses, 1u);
  EXPECT_EQ(script_.generation.stats().reprefills, 1u);
}

TEST_F(GenerationFaults, ASecondMissInARowBacksOffAndPlansAgain) {
  script_.End(Miss());
  script_.End(Miss());
  EXPECT_FALSE(script_.Has<NeedRoute>());
  script_.Wait();
  EXPECT_GT(script_.waited, absl::ZeroDuration());
  script_.Route(TwoHops());
  EXPECT_EQ(script_.Only<OpenStream>().open.epoch, SessionEpoch{3});
  script_.Token(12);
  EXPECT_EQ(script_.generation.stats().cache_misses, 2u);
  EXPECT_EQ(script_.generation.stats().reprefills, 1u);
}

TEST_F(GenerationFaults, AHopThatKeepsNoStateMakesTheGenerationStatelessForGood) {
  script_.End(Miss("caching_disabled"));
  EXPECT_EQ(script_.Compute().cache_mode, forward::CacheMode::kStateless);
  EXPECT_THAT(script_.Compute().tokens, ElementsAre(1, 2, 3, 10, 11));
  script_.Token(12);
  EXPECT_EQ(script_.Compute().cache_mode, forward::CacheMode::kStateless);
  EXPECT_EQ(script_.generation.stats().cache_misses, 1u);
  EXPECT_EQ(script_.generation.stats().reprefills, 1u);
  script_.End(HopUnavailable("b"));
  script_.End(HopUnavailable("b"));
  EXPECT_TRUE(script_.Only<NeedRoute>().request.stateless);
}

TEST_F(GenerationFaults, MissesWithATokenBetweenThemAreEachTheFirst) {
  for (int i = 0; i < 3; ++i) {
    script_.End(Miss());
    ASSERT_FALSE(script_.Has<NeedRoute>());
    script_.Token(static_cast<uint32_t>(20 + i));
  }
  EXPECT_EQ(script_.generation.stats().reprefills, 3u);
}

TEST_F(GenerationFaults, SupersededStateIsPrefilledAnewAndIsNoMiss) {
  script_.End(WithReason(absl::AbortedError("old"), reason::kSuperseded, "0"));
  EXPECT_EQ(script_.Only<OpenStream>().open.epoch, SessionEpoch{2});
  EXPECT_EQ(script_.generation.stats().cache_misses, 0u);
}

TEST_F(GenerationFaults, ADrainingOrRestartedHopIsAvoidedAtOnce) {
  for (const absl::Status& status :
       {WithReason(absl::AbortedError("leaving"), reason::kDraining, "1"),
        WithReason(absl::FailedPreconditionError("other"), reason::kWrongInstance, "1"),
        WithReason(absl::FailedPreconditionError("other"), reason::kWrongLayers, "1")}) {
    GenerationScript script;
    script.Run();
    script.Token(10);
    script.End(status);
    const RouteRequest request = script.Only<NeedRoute>().request;
    ASSERT_THAT(request.avoid, SizeIs(1));
    EXPECT_EQ(request.avoid[0].address, "b");
    RoutePlan restarted = TwoHops();
    restarted.hops[1] = Hop("b", 4, 8, /*instance=*/2);
    script.Route(restarted);
    EXPECT_EQ(script.Compute().cache_mode, forward::CacheMode::kPrefill);
    script.Token(11);
    EXPECT_THAT(script.sink.tokens, ElementsAre(10, 11));
  }
}

TEST_F(GenerationFaults, NoRouteIsAskedForAgainUntilShardsComeOrTheDeadline) {
  script_.End(WithReason(absl::AbortedError("leaving"), reason::kDraining, "1"));
  script_.Route(absl::UnavailableError("no shard serves layers [4,8) of 8"));
  EXPECT_FALSE(script_.Has<NeedRoute>());
  script_.effects.clear();
  script_.generation.OnShardsChanged(script_.now);
  script_.Collect();
  EXPECT_TRUE(script_.Has<NeedRoute>());
  script_.Route(absl::UnavailableError("no shard serves layers [4,8) of 8"));
  script_.Wait();
  EXPECT_TRUE(script_.Has<NeedRoute>());
}

TEST(GenerationRoutes, WithoutARouteTheDeadlineNamesTheMissingLayersJustInTime) {
  GenerationSpec spec = GenerationScript::Spec();
  spec.deadline = absl::Seconds(1010);
  GenerationScript script(spec);
  script.generation.Start(script.now);
  script.Collect();
  for (int i = 0; i < 1000 && !script.Has<Done>(); ++i) {
    if (script.Has<NeedRoute>()) {
      script.Route(absl::UnavailableError("no shard serves layers [4,8) of 8"));
    }
    script.Wait();
  }
  EXPECT_EQ(script.Only<Done>().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(script.Only<Done>().status.message()), HasSubstr("[4,8)"));
  EXPECT_LT(script.now, spec.deadline);
  EXPECT_GE(script.now, spec.deadline - absl::Milliseconds(500));
}

TEST(GenerationRoutes, ShardsThatDoNotFitTogetherEndItAfterABoundedNumberOfTries) {
  GenerationScript script;
  script.generation.Start(script.now);
  script.Collect();
  int tries = 0;
  while (!script.Has<Done>() && tries < 100) {
    ++tries;
    script.Route(absl::FailedPreconditionError("both sides"));
    if (!script.Has<Done>()) script.Wait();
  }
  EXPECT_EQ(tries, static_cast<int>(script.limits.mismatches_max) + 1);
  EXPECT_EQ(script.Only<Done>().status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(GenerationFaults, FailedPreconditionOfAStreamIsBoundedToo) {
  int rounds = 0;
  for (; rounds < 100; ++rounds) {
    script_.End(absl::FailedPreconditionError("feature x is unknown"));
    if (script_.Has<Done>()) break;
    if (!script_.Has<NeedRoute>()) script_.Wait();
    script_.Route(TwoHops());
  }
  EXPECT_EQ(rounds, static_cast<int>(script_.limits.mismatches_max));
  EXPECT_EQ(script_.Only<Done>().status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(GenerationRefusals, ARefusalWithADelayWaitsAndTriesAgainAsOftenAsItTakes) {
  GenerationScript script;
  script.Run();
  for (int i = 0; i < 50; ++i) {
    script.End(Refused(absl::Seconds(1)));
    ASSERT_FALSE(script.Has<NeedRoute>());
    EXPECT_TRUE(script.generation.waits_for_room());
    script.Wait();
    EXPECT_GE(script.waited, absl::Seconds(1));
    EXPECT_LE(script.waited, absl::Seconds(1.25));
    script.Route(TwoHops());
    EXPECT_FALSE(script.generation.waits_for_room());
  }
  script.Token(10);
  EXPECT_EQ(script.generation.stats().refusals, 50u);
  EXPECT_EQ(script.generation.stats().reprefills, 0u);
}

TEST(GenerationRefusals, ARefusalWithoutADelayIsFinal) {
  GenerationScript script;
  script.Run();
  script.End(Refused(absl::nullopt));
  EXPECT_EQ(script.Only<Done>().status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(script.generation.finished());
}

TEST(GenerationRefusals, MalformedFramesAndBadLogitsAreFinal) {
  for (const absl::Status& status :
       {absl::InvalidArgumentError("bad"),
        WithReason(absl::InternalError("nan_logits"), reason::kBadLogits, "1")}) {
    GenerationScript script;
    script.Run();
    script.End(status);
    EXPECT_EQ(script.Only<Done>().status.code(), status.code());
  }
}

TEST(GenerationPrefill, ABreakDuringPrefillStartsANewEpoch) {
  GenerationScript script;
  script.Run();
  script.End(HopUnavailable("b"));
  script.Route(TwoHops());
  EXPECT_EQ(script.Only<OpenStream>().open.epoch, SessionEpoch{2});
  EXPECT_EQ(script.Compute().cache_mode, forward::CacheMode::kPrefill);
  EXPECT_EQ(script.Compute().step, 0u);
}

TEST(GenerationPrefill, AStatelessStepIsRepeatedAsItWas) {
  GenerationScript script;
  RoutePlan plan = TwoHops();
  plan.stateless = true;
  script.Run(plan);
  script.Token(10);
  script.End(Lost());
  EXPECT_THAT(script.Compute().tokens, ElementsAre(1, 2, 3, 10));
  EXPECT_EQ(script.generation.attempt(), StreamAttempt{2});
}

TEST_F(GenerationFaults, ASilentStepAsksEveryHopAndBlamesTheSilentOne) {
  script_.Wait();
  EXPECT_EQ(script_.waited, absl::Seconds(5));
  EXPECT_EQ(script_.Only<ProbeSessions>().hops, TwoHops().hops);
  script_.effects.clear();
  script_.generation.OnSessionProbe(script_.generation.attempt(), 1, false, script_.now);
  script_.Collect();
  EXPECT_THAT(script_.effects, IsEmpty());
  script_.generation.OnSessionProbe(script_.generation.attempt(), 0, true, script_.now);
  script_.Collect();
  EXPECT_TRUE(script_.Has<EndStream>());
  const RouteRequest request = script_.Only<NeedRoute>().request;
  ASSERT_THAT(request.avoid, SizeIs(1));
  EXPECT_EQ(request.avoid[0].address, "b");
}

TEST_F(GenerationFaults, ASlowStepIsWaitedForWhileAllHopsAnswerUpToTheCap) {
  const MonoTime start = script_.now;
  int probes = 0;
  while (!script_.Has<NeedRoute>() && probes < 1000) {
    script_.Wait();
    if (!script_.Has<ProbeSessions>()) continue;
    ++probes;
    for (size_t hop = 0; hop < 2; ++hop) {
      script_.generation.OnSessionProbe(script_.generation.attempt(), hop, true, script_.now);
    }
    script_.Collect();
  }
  EXPECT_EQ(script_.now - start, script_.limits.step_wait_max);
  EXPECT_GT(probes, 10);
}

TEST_F(GenerationFaults, AnAnswerDuringTheProbeClearsEverybody) {
  script_.Wait();
  script_.generation.OnSessionProbe(script_.generation.attempt(), 0, true, script_.now);
  script_.Token(12);
  script_.effects.clear();
  script_.generation.OnSessionProbe(script_.generation.attempt(), 1, false, script_.now);
  script_.Collect();
  EXPECT_THAT(script_.effects, IsEmpty());
}

TEST_F(GenerationFaults, SlowStepsRaiseTheWatchdogToTwentyTimesTheMedian) {
  GenerationScript script;
  script.Run();
  script.Token(10);
  for (uint32_t i = 0; i < 5; ++i) {
    script.now += absl::Seconds(1);
    script.Token(20 + i);
  }
  script.Wait();
  EXPECT_EQ(script.waited, absl::Seconds(20));
}

TEST_F(GenerationFaults, AnAnswerToAnotherStepIsNotTaken) {
  script_.Answer(forward::Output{.step = 7, .token_id = 70});
  EXPECT_TRUE(script_.Has<EndStream>());
  EXPECT_THAT(script_.sink.tokens, ElementsAre(10, 11));
}

TEST_F(GenerationFaults, CancelWhileTheChainIsBrokenDropsHopByHop) {
  script_.End(Lost());
  script_.End(Lost());
  script_.effects.clear();
  script_.generation.Cancel(absl::CancelledError("gone"), script_.now);
  script_.Collect();
  EXPECT_THAT(script_.All<DropSession>(), SizeIs(2));
  EXPECT_TRUE(script_.generation.finished());
}

}  // namespace
}  // namespace kvmesh::router
