// A Generation that starts from stored state, or cannot, and repairs of single hops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/sha256.h"
#include "tests/unit/router/checkpoint_script.h"

namespace kvmesh::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class GenerationRestoreTest : public ::testing::Test {
 protected:
  CheckpointWorld world_;
};

TEST_F(GenerationRestoreTest, WithoutARowThePromptIsPrefilledAndTheCauseIsNoRow) {
  CheckpointScript script(world_);
  script.Run(CheckpointRoute());
  EXPECT_FALSE(script.Has<OpenStream>());
  EXPECT_EQ(script.Only<LookupRow>().prompt->text.text(), "abcdefghij");
  script.Miss();
  const forward::Open open = script.Only<OpenStream>().open;
  EXPECT_THAT(open.restore, IsEmpty());
  EXPECT_THAT(open.required_features, ElementsAre("checkpoints"));
  EXPECT_EQ(script.Compute().past_len, 0u);
  EXPECT_EQ(script.generation.reuse().outcome, Outcome::kCold);
  EXPECT_EQ(script.generation.reuse().cause, "no_row");
}

TEST_F(GenerationRestoreTest, AHitRestoresEveryHopAndPrefillsTheRest) {
  CheckpointScript script(world_);
  script.RunHit(6);
  const forward::Open open = script.Only<OpenStream>().open;
  ASSERT_THAT(open.restore, SizeIs(2));
  EXPECT_EQ(open.restore[1],
            (forward::HopRestore{.hop_index = 1, .slabs = {Slab({4, 8}).ref}, .tokens = 6}));
  const forward::Compute frame = script.Compute();
  EXPECT_EQ(frame.past_len, 6u);
  EXPECT_THAT(frame.tokens, ElementsAre(6, 7, 8, 9));
  EXPECT_EQ(frame.prefix_digest,
            PrefixDigest(TokensSha256(std::vector<uint32_t>{0, 1, 2, 3, 4, 5})));
  EXPECT_TRUE(frame.want_logits);
  const Reuse& reuse = script.generation.reuse();
  EXPECT_EQ(reuse.outcome, Outcome::kPartial);
  EXPECT_EQ(reuse.cached_tokens, 6u);
  EXPECT_EQ(reuse.cached_by_tier.at("ram"), 6u);
}

TEST_F(GenerationRestoreTest, TheLeaseEndsWhenEveryHopHasItsState) {
  CheckpointScript script(world_);
  script.RunHit(6);
  script.Opened(0);
  EXPECT_FALSE(script.Has<EndLease>());
  script.Opened(1);
  EXPECT_EQ(script.Only<EndLease>().lease, script.lease);
}

TEST_F(GenerationRestoreTest, ALeaseIsRenewedWhileTheHopsRead) {
  CheckpointScript script(world_);
  script.RunHit(6);
  script.Wait();  // the watchdog
  script.Wait();
  EXPECT_THAT(script.Only<RenewHolds>().leases, ElementsAre(script.lease));
}

TEST_F(GenerationRestoreTest, AFullHitSendsOneFrameWithoutRows) {
  CheckpointScript script(world_);
  script.RunHit(10);
  const forward::Compute frame = script.Compute();
  EXPECT_EQ(frame.cache_mode, forward::CacheMode::kPrefill);
  EXPECT_EQ(frame.past_len, 10u);
  EXPECT_THAT(frame.tokens, IsEmpty());
  EXPECT_TRUE(frame.want_logits);
  EXPECT_EQ(script.generation.reuse().outcome, Outcome::kExact);
  script.Token(11);
  const forward::Compute step = script.Compute();
  EXPECT_EQ(step.past_len, 10u);
  EXPECT_THAT(step.tokens, ElementsAre(11));
}

TEST_F(GenerationRestoreTest, DriftedIdsTakeThePromptsPlace) {
  CheckpointScript script(world_);
  script.Run(CheckpointRoute());
  script.Find(6);
  script.Join(5, std::vector<uint32_t>{20, 21, 22, 23, 24, 6, 7, 8, 9});
  EXPECT_THAT(script.Only<OpenStream>().open.history, ElementsAre(20, 21, 22, 23, 24, 6, 7, 8, 9));
  EXPECT_EQ(script.Only<OpenStream>().open.prompt_tokens, 9u);
  EXPECT_EQ(script.generation.prompt_tokens(), 9u);
  EXPECT_EQ(script.generation.reuse().drifted_tokens, 1u);
}

TEST_F(GenerationRestoreTest, ARestoreThatFailsMakesWayForTheNextRowAndThenForAPrefill) {
  CheckpointScript script(world_);
  script.RunHit(8);
  script.End(MissAt(1, "restore_failed:corrupt", Slab({4, 8}).ref));
  EXPECT_THAT(script.Only<EndLease>().bad_slabs, ElementsAre(Slab({4, 8}).ref));
  EXPECT_EQ(script.Only<LookupRow>().text_bytes_max, 7u);
  script.Find(5);
  script.Join(5);
  EXPECT_EQ(script.Only<OpenStream>().open.epoch, SessionEpoch{2});
  EXPECT_EQ(script.Compute().past_len, 5u);
  script.End(MissAt(0, "restore_failed:no_room"));
  EXPECT_THAT(script.Only<EndLease>().bad_slabs, IsEmpty());
  script.Miss();
  EXPECT_EQ(script.Compute().past_len, 0u);
  // The first row's, which was the longest.
  EXPECT_EQ(script.generation.reuse().cause, "restore_failed:corrupt");
  script.Token(11);
  EXPECT_EQ(script.generation.stats().reprefills, 0u);
}

TEST_F(GenerationRestoreTest, OwnIdsComeBackWhenADriftedRowCannotBeRestored) {
  CheckpointScript script(world_);
  script.Run(CheckpointRoute());
  script.Find(6);
  script.Join(5, std::vector<uint32_t>{20, 21, 22, 23, 24, 6, 7, 8, 9});
  script.End(MissAt(0, "restore_failed:timeout"));
  EXPECT_THAT(script.Only<LookupRow>().prompt->ids, SizeIs(10));
  script.Miss();
  EXPECT_THAT(script.Only<OpenStream>().open.history, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(script.generation.reuse().drifted_tokens, 0u);
}

TEST_F(GenerationRestoreTest, AnArbiterThatIsAwayCostsTheCheckpointAndNothingElse) {
  CheckpointScript script(world_);
  script.Run(CheckpointRoute());
  script.Input(&Generation::OnLookup, script.Only<LookupRow>().call,
               absl::StatusOr<std::optional<FoundRow>>(absl::UnavailableError("refused")));
  EXPECT_EQ(script.Compute().past_len, 0u);
  EXPECT_EQ(script.generation.reuse().cause, "disabled: meta unavailable");
}

TEST_F(GenerationRestoreTest, AnArbiterThatDoesNotAnswerIsWaitedForHalfASecond) {
  CheckpointScript script(world_);
  script.Run(CheckpointRoute());
  script.Wait();
  EXPECT_EQ(script.waited, absl::Milliseconds(500));
  EXPECT_EQ(script.Compute().past_len, 0u);
  EXPECT_EQ(script.generation.reuse().cause, "disabled: meta unavailable");
}

TEST_F(GenerationRestoreTest, NothingIsAskedWhereTheClientOrAShardHasNoCheckpoints) {
  GenerationSpec off = CheckpointScript::Letters();
  off.checkpoints.off_cause = "disabled: cache off";
  CheckpointScript unwanted(world_, off);
  unwanted.Run(CheckpointRoute());
  EXPECT_EQ(unwanted.Compute().past_len, 0u);
  EXPECT_EQ(unwanted.generation.reuse().cause, "disabled: cache off");
  EXPECT_THAT(unwanted.Only<OpenStream>().open.required_features, IsEmpty());

  CheckpointScript unable(world_);
  unable.Run(TwoHops());
  EXPECT_EQ(unable.Compute().past_len, 0u);
  EXPECT_FALSE(unable.Has<LookupRow>());
  EXPECT_EQ(unable.generation.reuse().cause, "disabled: the shards keep no checkpoints");
}

TEST_F(GenerationRestoreTest, ACancelDuringTheLookUpLetsTheRowGo) {
  CheckpointScript script(world_);
  script.Run(CheckpointRoute());
  const auto lookup = script.Only<LookupRow>();
  script.effects.clear();
  script.generation.Cancel(absl::CancelledError("gone"), script.now);
  script.Collect();
  EXPECT_TRUE(script.generation.finished());
  EXPECT_EQ(script.Only<EndLease>().lease, lookup.lease);
}

// Prompt of ten, then two tokens: step 2 feeds the second.
void RunTwoSteps(CheckpointScript& script) {
  script.RunCold();
  script.Token(10);
  script.Token(11);
}

TEST_F(GenerationRestoreTest, AHopThatLostItsStateRestoresItsFragmentAlone) {
  for (const bool ran : {false, true}) {
    CheckpointScript script(world_);
    RunTwoSteps(script);
    script.End(MissAt(1, "unknown_session"));
    const auto await = script.Only<AwaitFragment>();
    EXPECT_EQ(await.layers, (LayerRange{4, 8}));
    ASSERT_THAT(await.positions, SizeIs(2));
    EXPECT_EQ(await.positions[0].tokens, 11u);
    EXPECT_EQ(await.positions[1].tokens, 12u);
    EXPECT_EQ(await.positions[1].tokens_sha256, TokensSha256(script.generation.history()));
    EXPECT_EQ(await.appear_wait, absl::Milliseconds(500));
    EXPECT_EQ(await.upload_wait, absl::Seconds(10));
    script.FragmentFound(await, ran ? 1 : 0);
    const forward::Open open = script.Only<OpenStream>().open;
    EXPECT_EQ(open.epoch, SessionEpoch{1});
    EXPECT_EQ(open.attempt, StreamAttempt{2});
    EXPECT_THAT(open.restore,
                ElementsAre(forward::HopRestore{.hop_index = 1,
                                                .slabs = {Slab({4, 8}, "fragment").ref},
                                                .tokens = ran ? 12u : 11u,
                                                .last_step = ran ? 2u : 1u}));
    EXPECT_EQ(script.Compute().step, 2u);
    EXPECT_EQ(script.Compute().past_len, 11u);
    script.Opened(1);
    EXPECT_EQ(script.Only<EndLease>().lease, await.lease);
    script.Token(12);
    EXPECT_EQ(script.generation.stats().repairs, 1u);
    EXPECT_EQ(script.generation.stats().reprefills, 0u);
    EXPECT_THAT(script.sink.tokens, ElementsAre(10, 11, 12));
  }
}

TEST_F(GenerationRestoreTest, AHopThatAnotherProcessStandsInForIsRepairedToo) {
  CheckpointScript script(world_);
  RunTwoSteps(script);
  script.End(WithErrorInfo(absl::AbortedError("draining"),
                           {.reason = std::string(reason::kDraining), .metadata = {{"hop", "0"}}}));
  RoutePlan plan = CheckpointRoute();
  plan.hops[0].instance.mutable_data()[0] = 7;
  script.Route(plan);
  EXPECT_EQ(script.Only<AwaitFragment>().layers, (LayerRange{0, 4}));
}

TEST_F(GenerationRestoreTest, BothHopsAtOnceAreRepairedTogether) {
  CheckpointScript script(world_);
  RunTwoSteps(script);
  script.End(WithErrorInfo(absl::AbortedError("draining"),
                           {.reason = std::string(reason::kDraining), .metadata = {}}));
  RoutePlan plan = CheckpointRoute();
  for (forward::HopRef& hop : plan.hops) hop.instance.mutable_data()[0] = 7;
  script.Route(plan);
  const std::vector<AwaitFragment> awaits = script.All<AwaitFragment>();
  ASSERT_THAT(awaits, SizeIs(2));
  script.FragmentFound(awaits[1], 0);
  EXPECT_FALSE(script.Has<OpenStream>());
  script.FragmentFound(awaits[0], 1);
  EXPECT_THAT(script.Only<OpenStream>().open.restore, SizeIs(2));
}

TEST_F(GenerationRestoreTest, WithoutAFragmentTheLongestRowOfTheWholeSequenceIsLookedFor) {
  CheckpointScript script(world_);
  RunTwoSteps(script);
  script.End(MissAt(1, "evicted_lru"));
  script.NoFragment(script.Only<AwaitFragment>());
  EXPECT_EQ(script.Only<LookupRow>().prompt->ids, script.generation.history());
  script.Find(8);
  script.Join(8);
  const forward::Compute frame = script.Compute();
  EXPECT_EQ(frame.cache_mode, forward::CacheMode::kPrefill);
  EXPECT_EQ(frame.past_len, 8u);
  EXPECT_EQ(frame.step, 2u);
  EXPECT_EQ(script.Only<OpenStream>().open.epoch, SessionEpoch{2});
  script.Token(12);
  EXPECT_EQ(script.generation.stats().reprefills, 1u);
  EXPECT_EQ(script.generation.reuse().cause, "no_row");  // of the prompt, still
}

TEST_F(GenerationRestoreTest, AMissThatNoFragmentCanExplainIsAPrefillAtOnce) {
  CheckpointScript script(world_);
  RunTwoSteps(script);
  script.End(MissAt(1, "digest"));
  EXPECT_FALSE(script.Has<AwaitFragment>());
  EXPECT_TRUE(script.Has<LookupRow>());
}

TEST_F(GenerationRestoreTest, AFragmentThatCannotBeLoadedIsNamedAndThePrefillTakesOver) {
  CheckpointScript script(world_);
  RunTwoSteps(script);
  script.End(MissAt(1, "unknown_session"));
  script.FragmentFound(script.Only<AwaitFragment>(), 0);
  script.End(MissAt(1, "restore_failed:corrupt", Slab({4, 8}, "fragment").ref));
  EXPECT_THAT(script.Only<EndLease>().bad_slabs, SizeIs(1));
  script.Miss();
  EXPECT_EQ(script.Compute().past_len, 0u);
  script.Token(12);
  EXPECT_EQ(script.generation.stats().repairs, 0u);
  EXPECT_EQ(script.generation.stats().reprefills, 1u);
}

TEST_F(GenerationRestoreTest, TheOtherHopsAreTouchedWhileOneIsWaitedFor) {
  CheckpointScript script(world_);
  RunTwoSteps(script);
  script.End(WithErrorInfo(absl::AbortedError("draining"),
                           {.reason = std::string(reason::kDraining), .metadata = {{"hop", "0"}}}));
  script.Route(absl::UnavailableError("no shard serves layers [0,4)"));
  absl::Duration waited;
  while (!script.Has<ProbeSessions>()) {
    script.Wait();
    waited += script.waited;
    if (script.Has<NeedRoute>()) script.Route(absl::UnavailableError("still none"));
    ASSERT_LE(waited, absl::Seconds(6));
  }
  EXPECT_THAT(script.Only<ProbeSessions>().hops, SizeIs(2));
}

TEST_F(GenerationRestoreTest, AParentsSaveIsWaitedForBeforeTheLookUp) {
  GenerationSpec spec = CheckpointScript::Letters();
  spec.checkpoints.parent_key = Sha256Of("parent");
  CheckpointScript script(world_, spec);
  script.Run(CheckpointRoute());
  const auto parent = script.Only<AwaitParent>();
  EXPECT_EQ(parent.key, Sha256Of("parent"));
  EXPECT_FALSE(script.Has<LookupRow>());
  script.effects.clear();
  script.generation.OnParent(parent.call, script.now);
  script.Collect();
  EXPECT_TRUE(script.Has<LookupRow>());
}

}  // namespace
}  // namespace kvmesh::router
