// What a Generation saves, and where the Save stands among its frames.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/forward/key_namespace.h"
#include "common/slab/content_key.h"
#include "tests/unit/router/checkpoint_script.h"

namespace kvmesh::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class GenerationSavesTest : public ::testing::Test {
 protected:
  static Sha256Digest KeyOf(absl::string_view text) {
    return slab::ContentKey(forward::KeyNamespaceOf(CheckpointRoute().cache_namespace), text);
  }
  static forward::SaveState State(const forward::Save& save, uint32_t hop,
                                  forward::SaveState::State state, const std::string& cause = "") {
    return {.hop_index = hop, .write_id = save.write_id, .state = state, .cause = cause};
  }

  CheckpointWorld world_;
};

TEST_F(GenerationSavesTest, AColdPromptIsReservedWithThePrefillAndSavedBehindItsLastChunk) {
  CheckpointScript script(world_);
  script.RunCold();
  const auto reserve = script.Only<ReserveRow>();
  EXPECT_EQ(reserve.reason, forward::SaveReason::kCold);
  EXPECT_EQ(reserve.key, KeyOf("abcdefghij"));
  ASSERT_THAT(reserve.ranges, SizeIs(2));
  EXPECT_GT(reserve.ranges[0].second, 10u * 10);
  script.Reserved(reserve);
  const std::vector<forward::Save> saves = script.Frames<forward::Save>();
  ASSERT_THAT(saves, SizeIs(1));
  EXPECT_EQ(saves[0].at_tokens, 10u);
  EXPECT_THAT(saves[0].targets, ElementsAre(std::pair<uint32_t, std::string>(0, "store:0"),
                                            std::pair<uint32_t, std::string>(1, "store:4")));
}

TEST_F(GenerationSavesTest, AReservationThatComesLateIsUsedWhereStateCanBeCut) {
  for (const bool cut : {true, false}) {
    world_.setup.options.state_can_be_cut = cut;
    world_.setup.options.gates.continued_interval = 1000;
    CheckpointScript script(world_, CheckpointScript::Letters(4));
    script.RunCold();
    const auto reserve = script.Only<ReserveRow>();
    script.Token(10);
    if (!cut) {
      EXPECT_THAT(script.SaveResults(), ElementsAre("cold:late"));
    }
    script.Reserved(reserve);
    EXPECT_THAT(script.Frames<forward::Save>(), SizeIs(cut ? 1 : 0));
    EXPECT_EQ(script.Has<CancelReservation>(), !cut);
  }
}

TEST_F(GenerationSavesTest, StateThatCannotBeCutHasAChunkEdgeAtItsTrimmedBoundary) {
  world_.setup.options.state_can_be_cut = false;
  CheckpointScript script(world_);
  script.RunCold();
  const std::vector<ReserveRow> reserves = script.All<ReserveRow>();
  ASSERT_THAT(reserves, SizeIs(2));
  const std::vector<forward::Compute> frames = script.Computes();
  ASSERT_THAT(frames, SizeIs(2));
  EXPECT_EQ(frames[1].past_len, 8u);
  EXPECT_THAT(frames[1].tokens, SizeIs(2));
}

TEST_F(GenerationSavesTest, ARestoredPromptIsNotSavedAgain) {
  CheckpointScript script(world_);
  script.RunHit(7);
  EXPECT_FALSE(script.Has<ReserveRow>());  // three tokens prefilled, the gate is four
}

TEST_F(GenerationSavesTest, AReservationIsRenewedUntilEveryHopHasAnswered) {
  CheckpointScript script(world_);
  script.RunCold();
  script.Reserved(script.Only<ReserveRow>());
  const forward::Save save = script.Frames<forward::Save>().at(0);
  script.Answer(State(save, 0, forward::SaveState::State::kStarted));
  EXPECT_THAT(script.SaveResults(), IsEmpty());
  while (!script.Has<RenewHolds>()) script.Wait();
  EXPECT_THAT(script.Only<RenewHolds>().writes, ElementsAre(save.write_id));
  script.Answer(State(save, 1, forward::SaveState::State::kStarted));
  EXPECT_THAT(script.SaveResults(), ElementsAre("cold:started"));
  script.Answer(State(save, 1, forward::SaveState::State::kDone));
  EXPECT_THAT(script.SaveResults(), IsEmpty());
}

TEST_F(GenerationSavesTest, AReservationIsRenewedThreeTimesInTheTimeThatItWasGrantedFor) {
  CheckpointScript script(world_);
  script.RunCold();
  script.Reserved(script.Only<ReserveRow>(), absl::Seconds(3));
  for (int i = 0; i < 3; ++i) {
    const MonoTime before = script.now;
    do {
      script.Wait();
    } while (!script.Has<RenewHolds>());
    EXPECT_EQ(script.now - before, absl::Seconds(1));
  }
}

TEST_F(GenerationSavesTest, OneHopThatDropsItCancelsTheReservation) {
  CheckpointScript script(world_);
  script.RunCold();
  const auto reserve = script.Only<ReserveRow>();
  script.Reserved(reserve);
  const forward::Save save = script.Frames<forward::Save>().at(0);
  script.Answer(State(save, 1, forward::SaveState::State::kDropped, "backpressure"));
  EXPECT_EQ(script.Only<CancelReservation>().request, reserve.request);
  EXPECT_THAT(script.SaveResults(), ElementsAre("cold:dropped:backpressure"));
}

TEST_F(GenerationSavesTest, ARefusedReservationIsCountedByItsReason) {
  const std::pair<absl::Status, std::string> refusals[] = {
      {absl::AlreadyExistsError("row"), "already_exists"},
      {absl::AbortedError("BEING_WRITTEN"), "being_written"},
      {WithErrorInfo(absl::ResourceExhaustedError("full"),
                     {.reason = std::string(reason::kNoRoom), .metadata = {}}),
       "no_room"},
      {WithErrorInfo(absl::ResourceExhaustedError("full"), {.reason = "QUOTA", .metadata = {}}),
       "quota"},
      {absl::UnavailableError("refused"), "meta_unavailable"}};
  for (const auto& [status, result] : refusals) {
    CheckpointScript script(world_);
    script.RunCold();
    script.NotReserved(script.Only<ReserveRow>(), status);
    EXPECT_THAT(script.SaveResults(), ElementsAre(absl::StrCat("cold:", result)));
  }
}

TEST_F(GenerationSavesTest, FinishIsReservedBeforeTheAnswerAndSavedBeforeClose) {
  CheckpointScript script(world_, CheckpointScript::Letters(10, 2));
  script.RunCold();
  script.Reserved(script.Only<ReserveRow>());
  script.Token(10);
  script.Token(11);
  const auto reserve = script.Only<ReserveRow>();
  EXPECT_EQ(reserve.reason, forward::SaveReason::kFinish);
  EXPECT_LT(script.IndexOf<ReserveRow>(), script.IndexOf<Done>());
  // The last token was not run: "k" is the last run one.
  EXPECT_EQ(reserve.key, KeyOf("abcdefghijk"));
  EXPECT_EQ(script.generation.finish_key(), reserve.key);
  EXPECT_FALSE(script.Dropped());
  script.Reserved(reserve);
  ASSERT_THAT(script.All<SendFrame>(), SizeIs(2));
  EXPECT_EQ(script.Frames<forward::Save>().at(0).at_tokens, 11u);
  EXPECT_TRUE(std::holds_alternative<forward::Close>(script.All<SendFrame>()[1].frame));
}

TEST_F(GenerationSavesTest, CloseWaitsForAFinishReservationOneSecondAtMost) {
  CheckpointScript script(world_, CheckpointScript::Letters(10, 2));
  script.RunCold();
  script.Reserved(script.Only<ReserveRow>());
  script.Token(10);
  script.Token(11);
  const auto reserve = script.Only<ReserveRow>();
  script.Wait();
  EXPECT_EQ(script.waited, absl::Seconds(1));
  EXPECT_TRUE(script.Dropped());
  EXPECT_THAT(script.SaveResults(), ElementsAre("finish:ended"));
  // Only when its answer is here is there something to cancel.
  EXPECT_FALSE(script.Has<CancelReservation>());
  script.Reserved(reserve);
  EXPECT_EQ(script.Only<CancelReservation>().request, reserve.request);
  EXPECT_THAT(script.Frames<forward::Save>(), IsEmpty());
}

TEST_F(GenerationSavesTest, FinishStopsAtTheTextThatTheClientSaw) {
  CheckpointScript script(world_);
  script.sink.stop_after = 3;
  script.sink.shown_max = 1;
  script.RunCold();
  for (const uint32_t id : {10u, 11u, 12u}) script.Token(id);
  EXPECT_EQ(script.Only<ReserveRow>().key, KeyOf("abcdefghijk"));
}

TEST_F(GenerationSavesTest, ACancelInDecodeIsSavedToo) {
  CheckpointScript script(world_);
  script.RunCold();
  script.Reserved(script.Only<ReserveRow>());
  script.Token(10);
  script.Token(11);
  script.effects.clear();
  script.generation.Cancel(absl::CancelledError("gone"), script.now);
  script.Collect();
  const auto reserve = script.Only<ReserveRow>();
  script.Reserved(reserve);
  EXPECT_EQ(script.Frames<forward::Save>().at(0).at_tokens, 11u);
  EXPECT_TRUE(script.Dropped());
}

TEST_F(GenerationSavesTest, ACancelInPrefillClosesAtOnce) {
  CheckpointScript script(world_);
  script.RunCold();
  const auto reserve = script.Only<ReserveRow>();
  script.effects.clear();
  script.generation.Cancel(absl::CancelledError("gone"), script.now);
  script.Collect();
  EXPECT_TRUE(script.Dropped());
  EXPECT_FALSE(script.Has<ReserveRow>());
  script.Reserved(reserve);
  EXPECT_TRUE(script.Has<CancelReservation>());
}

TEST_F(GenerationSavesTest, ATooShortRowIsCountedAndClosesAtOnceWithItsKey) {
  CheckpointScript script(world_, CheckpointScript::Letters(2, 1));
  script.Run(CheckpointRoute());
  script.Token(10);
  EXPECT_THAT(script.SaveResults(), ElementsAre("finish:too_short"));
  EXPECT_TRUE(script.Dropped());
  EXPECT_EQ(script.generation.finish_key(), KeyOf("ab"));
}

TEST_F(GenerationSavesTest, ContinuedSavesFollowTheirIntervalWithoutHoldingAStep) {
  CheckpointScript script(world_);
  script.RunCold();
  script.Reserved(script.Only<ReserveRow>());
  script.Token(10);
  script.Token(11);
  EXPECT_FALSE(script.Has<ReserveRow>());
  script.Token(12);
  const auto reserve = script.Only<ReserveRow>();
  EXPECT_EQ(reserve.reason, forward::SaveReason::kContinued);
  EXPECT_EQ(reserve.key, KeyOf("abcdefghijkl"));
  EXPECT_EQ(script.Compute().step, 3u);
  script.Reserved(reserve);
  EXPECT_EQ(script.Frames<forward::Save>().at(0).at_tokens, 12u);
}

TEST_F(GenerationSavesTest, WhereStateCannotBeCutTheStepWaitsTwentyMillisecondsAtMost) {
  world_.setup.options.state_can_be_cut = false;
  world_.setup.options.gates.cold_min_tokens = 1000;
  for (const bool in_time : {true, false}) {
    CheckpointScript script(world_);
    script.RunCold();
    for (const uint32_t id : {10u, 11u, 12u}) script.Token(id);
    const auto reserve = script.Only<ReserveRow>();
    EXPECT_THAT(script.Computes(), IsEmpty());
    if (in_time) {
      script.Reserved(reserve);
      EXPECT_THAT(script.Frames<forward::Save>(), SizeIs(1));
      EXPECT_TRUE(std::holds_alternative<forward::Save>(script.All<SendFrame>()[0].frame));
    } else {
      script.Wait();
      EXPECT_EQ(script.waited, absl::Milliseconds(20));
      EXPECT_THAT(script.SaveResults(), ElementsAre("continued:late"));
    }
    EXPECT_EQ(script.Compute().step, 3u);
  }
}

TEST_F(GenerationSavesTest, ABrokenStreamEndsWhatWasSentAndKeepsWhatWasNot) {
  CheckpointScript script(world_);
  script.RunCold();
  const auto reserve = script.Only<ReserveRow>();
  script.Token(10);
  script.Reserved(reserve);
  EXPECT_THAT(script.Frames<forward::Save>(), SizeIs(1));
  script.End(Lost());
  EXPECT_THAT(script.SaveResults(), ElementsAre("cold:stream_lost"));
  EXPECT_FALSE(script.Has<CancelReservation>());
}

}  // namespace
}  // namespace kvmesh::router
