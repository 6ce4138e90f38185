// Saves: what a hop snapshots, in which order it answers, and what it drops.
#include <gtest/gtest.h>

#include "tests/unit/shard/checkpoint_testing.h"

namespace kvmesh::shard {
namespace {

using forward::Close;
using forward::Disposition;
using forward::SaveReason;
using States = std::vector<std::string>;

uint64_t Dropped(CheckpointHop& h, SaveDrop drop, SaveReason reason) {
  return h.hop().saves().counters().dropped[static_cast<size_t>(drop)][static_cast<size_t>(reason)];
}

TEST(Save, AtExactlyWhatIsHeldTakesStateAndLastRow) {
  CheckpointHop h;
  h.Run(kHopPrompt);
  h.Send(1, h.MakeSave(4));
  const auto job = h.TakeSaveJob();
  ASSERT_NE(job, nullptr);
  EXPECT_EQ(job->snapshot.tokens, kHopPrompt);
  EXPECT_EQ(job->snapshot.last_row.size(), testing::kToyHiddenSize);
  EXPECT_EQ(job->store_address, kStore);
  EXPECT_EQ(job->write_id, Write(7));
  const std::string file = SlabOf(*job, ToyFacts(h.engine()), job->write_id);
  const slab::SlabMeta meta = MetaOf(file);
  EXPECT_EQ(meta.token_ids, kHopPrompt);
  EXPECT_EQ(meta.text, testing::ToyText(kHopPrompt));
  EXPECT_TRUE(meta.last_output.has_value());
  EXPECT_EQ(meta.key, KeyOf(ToyNamespace(), kHopPrompt, testing::ToyVocabulary()));
}

TEST(Save, ACutSnapshotHasNoLastRowAndIsTheStateOfTheShorterText) {
  CheckpointHop longer;
  longer.Run(Sequence(3));
  longer.Send(1, longer.MakeSave(4));
  CheckpointHop exact;
  exact.Run(kHopPrompt);
  exact.Send(1, exact.MakeSave(4));
  const auto cut_job = longer.TakeSaveJob();
  const auto exact_job = exact.TakeSaveJob();
  ASSERT_NE(cut_job, nullptr);
  ASSERT_NE(exact_job, nullptr);
  EXPECT_TRUE(cut_job->snapshot.last_row.empty());
  const std::string cut = SlabOf(*cut_job, ToyFacts(longer.engine()), Write(7));
  const std::string whole = SlabOf(*exact_job, ToyFacts(exact.engine()), Write(7));
  EXPECT_FALSE(MetaOf(cut).last_output.has_value());
  EXPECT_EQ(MetaOf(cut).payload_crc32c(), MetaOf(whole).payload_crc32c());
}

// A reservation that is answered late costs no full hit: the prompt's row waits for it.
TEST(Save, APromptsEndHasItsRowHoweverManyStepsHaveRunSince) {
  CheckpointHop at_once;
  at_once.Run(kHopPrompt);
  at_once.Send(1, at_once.MakeSave(4));
  const auto job = at_once.TakeSaveJob();
  ASSERT_NE(job, nullptr);
  ASSERT_FALSE(job->snapshot.last_row.empty());
  const std::string whole = SlabOf(*job, ToyFacts(at_once.engine()), Write(7));
  CheckpointHop late;
  late.Run(kHopPrompt);
  for (uint32_t step = 1; step <= 3; ++step) {
    late.Send(1, late.Decode(Sequence(step), step));
    ASSERT_EQ(late.RunAll(), 1);
    late.Send(1, late.MakeSave(4));
    const auto cut = late.TakeSaveJob();
    ASSERT_NE(cut, nullptr);
    EXPECT_EQ(SlabOf(*cut, ToyFacts(late.engine()), Write(7)), whole);
  }
  // Another length than the prompt's has none.
  late.Send(1, late.MakeSave(5));
  EXPECT_TRUE(late.TakeSaveJob()->snapshot.last_row.empty());
}

TEST(Save, MoreTokensThanAreHeldOrNoneAreDropped) {
  CheckpointHop h;
  h.Run(kHopPrompt);
  for (const uint64_t at : {0, 5}) {
    h.Send(1, h.MakeSave(at));
    EXPECT_EQ(h.TakeSaveStates(), States{"dropped not_held"});
  }
  EXPECT_TRUE(h.Take<StartSave>().empty());
  EXPECT_EQ(Dropped(h, SaveDrop::kNotHeld, SaveReason::kCold), 2u);
}

TEST(Save, WithoutAStoreForThisHopIsDropped) {
  CheckpointHop h;
  h.Run(kHopPrompt);
  forward::Save save = h.MakeSave(4);
  save.targets = {{1, kStore}};
  h.Send(1, save);
  EXPECT_EQ(h.TakeSaveStates(), States{"dropped no_target"});
}

TEST(Save, IsAnsweredWhenThePutOpensAndAgainWhenItHasEnded) {
  CheckpointHop h;
  h.Run(kHopPrompt);
  h.Send(1, h.MakeSave(4));
  const auto job = h.TakeSaveJob();
  ASSERT_NE(job, nullptr);
  EXPECT_TRUE(h.TakeSaveStates().empty());
  h.SaveStarts(job->id);
  h.SaveStarts(job->id);
  EXPECT_EQ(h.TakeSaveStates(), States{"started"});
  h.SaveEnds(job->id);
  h.SaveEnds(job->id);
  EXPECT_EQ(h.TakeSaveStates(), States{"done"});
  EXPECT_EQ(h.hop().saves().counters().done[0], 1u);
  EXPECT_EQ(h.hop().saves().bytes(), 0u);
}

TEST(Save, AFailedUploadIsToldWithItsCause) {
  CheckpointHop h;
  h.Run(kHopPrompt);
  h.Send(1, h.MakeSave(4));
  h.SaveEnds(h.TakeSaveJob()->id, SaveDrop::kStoreRefused);
  EXPECT_EQ(h.TakeSaveStates(), States{"dropped store_refused"});
}

TEST(Save, WaitsForTheFramesBeforeIt) {
  CheckpointHop h;
  h.Send(1, h.MakeNamedOpen(1, kHopPrompt));
  h.Send(1, h.Prefill(kHopPrompt, 0, 2, false));
  h.Send(1, h.Prefill(kHopPrompt, 2, 4, true));
  h.Send(1, h.MakeSave(4));
  EXPECT_TRUE(h.Take<StartSave>().empty());
  h.RunAll();
  const auto job = h.TakeSaveJob();
  ASSERT_NE(job, nullptr);
  EXPECT_FALSE(job->snapshot.last_row.empty());
}

TEST(Save, TheSnapshotStaysAsItIsWhileTheSessionGoesOn) {
  CheckpointHop h;
  h.Run(kHopPrompt);
  h.Send(1, h.MakeSave(4));
  const auto job = h.TakeSaveJob();
  CheckpointHop still;
  still.Run(kHopPrompt);
  still.Send(1, still.MakeSave(4));
  const std::string clone = SlabOf(*still.TakeSaveJob(), ToyFacts(h.engine()), Write(7));
  for (uint32_t step = 1; step <= 20; ++step) {
    h.Send(1, h.Decode(Sequence(step), step));
    ASSERT_EQ(h.RunAll(), 1);
  }
  h.Send(1, Close{Disposition::kDrop});
  EXPECT_EQ(SlabOf(*job, ToyFacts(h.engine()), Write(7)), clone);
}

TEST(Save, IsForwardedBeforeTheNextHopsAnswersAreRelayedInOrder) {
  CheckpointHop h({0, 3});
  h.Run(kHopPrompt);
  h.Take<SendDown>();
  h.Send(1, h.MakeSave(4));
  const auto sent = h.Take<SendDown>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(std::get<forward::Save>(sent[0].frame).at_tokens, 4u);
  h.Down(1, forward::SaveState{.hop_index = 1, .state = forward::SaveState::State::kStarted});
  h.SaveStarts(h.TakeSaveJob()->id);
  h.Down(1, forward::SaveState{.hop_index = 1, .state = forward::SaveState::State::kDone});
  EXPECT_EQ(h.TakeSaveStates(), (States{"started", "started", "done"}));
  h.Down(1, forward::SaveState{.hop_index = 1, .state = forward::SaveState::State::kDone});
  EXPECT_EQ(h.TakeEndReason(), reason::kHopUnavailable);
}

TEST(Save, CloseDropFreesTheSessionAndTheStreamEndsWhenItsSavesHaveEnded) {
  CheckpointHop h;
  h.Run(kHopPrompt);
  h.Send(1, h.MakeSave(4, 7, SaveReason::kFinish));
  h.Send(1, Close{Disposition::kDrop});
  const auto job = h.TakeSaveJob();
  ASSERT_NE(job, nullptr);
  EXPECT_FALSE(h.View(1).has_value());
  EXPECT_FALSE(h.TakeEnd().has_value());
  EXPECT_FALSE(h.hop().quiet());
  h.SaveStarts(job->id);
  h.SaveEnds(job->id);
  EXPECT_EQ(h.TakeSaveStates(), (States{"started", "done"}));
  EXPECT_TRUE(h.TakeEnd()->ok());
  EXPECT_TRUE(h.hop().quiet());
}

TEST(Save, CloseDropDoesNotWaitForASaveForLongerThanItsBound) {
  CheckpointHop h;
  h.Run(kHopPrompt);
  h.Send(1, h.MakeSave(4));
  h.Send(1, Close{Disposition::kDrop});
  const auto job = h.TakeSaveJob();
  h.Tick(h.hop().options().close_wait_max - absl::Milliseconds(1));
  EXPECT_FALSE(h.TakeEnd().has_value());
  h.Tick(absl::Milliseconds(1));
  EXPECT_TRUE(h.TakeEnd()->ok());
  h.SaveEnds(job->id);  // outlives the stream
  EXPECT_EQ(h.hop().saves().counters().done[0], 1u);
}

TEST(Save, AHopWithTheNextOneBehindItEndsAfterBothItsSaveAndTheNextHopHaveEnded) {
  for (const bool down_first : {true, false}) {
    CheckpointHop h({0, 3});
    h.Run(kHopPrompt);
    h.Send(1, h.MakeSave(4));
    h.Send(1, Close{Disposition::kDrop});
    const auto job = h.TakeSaveJob();
    if (down_first) h.DownEnds(1, absl::OkStatus());
    if (!down_first) h.SaveEnds(job->id);
    EXPECT_FALSE(h.TakeEnd().has_value());
    if (down_first) h.SaveEnds(job->id);
    if (!down_first) h.DownEnds(1, absl::OkStatus());
    EXPECT_TRUE(h.TakeEnd()->ok());
  }
}

TEST(Save, CloseDropLetsTheRunningStepEndThatASaveNeedsAndNothingMoreGoesDown) {
  CheckpointHop h({0, 3});
  h.Run(kHopPrompt);
  h.Take<SendDown>();
  h.Down(1, forward::Opened{.hop_index = 1});
  h.Down(1, forward::Ack{});
  h.Down(1, forward::Output{.token_id = Generated(1)[0]});
  h.Send(1, h.Decode(Sequence(1), 1));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Send(1, h.MakeSave(4, 7, SaveReason::kFinish));
  h.Send(1, Close{Disposition::kDrop});
  EXPECT_FALSE(job->cancel->load());
  EXPECT_TRUE(h.Take<SendDown>().empty());
  h.Finish(*job);
  const auto save = h.TakeSaveJob();
  ASSERT_NE(save, nullptr);
  EXPECT_EQ(save->snapshot.tokens, kHopPrompt);
  EXPECT_FALSE(h.View(1).has_value());
  const auto sent = h.Take<SendDown>();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<forward::Save>(sent[0].frame));
  EXPECT_TRUE(std::holds_alternative<forward::Close>(sent[1].frame));
}

TEST(Save, CloseDropInAPrefillCancelsItAndDropsTheSaveBehindIt) {
  CheckpointHop h;
  h.Send(1, h.MakeNamedOpen(1, kHopPrompt));
  h.Send(1, h.Prefill(kHopPrompt, 0, 4, true));
  h.Send(1, h.MakeSave(4));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Send(1, Close{Disposition::kDrop});
  EXPECT_TRUE(job->cancel->load());
  h.Finish(*job);
  EXPECT_EQ(h.TakeSaveStates(), States{"dropped not_held"});
  EXPECT_TRUE(h.TakeEnd()->ok());
}

TEST(Save, ALostStreamDoesNotEndASave) {
  CheckpointHop h;
  h.Run(kHopPrompt);
  h.Send(1, h.MakeSave(4));
  const auto job = h.TakeSaveJob();
  h.Lose(1);
  h.SaveStarts(job->id);
  h.SaveEnds(job->id);
  EXPECT_TRUE(h.TakeAnswers<forward::SaveState>().empty());
  EXPECT_EQ(h.hop().saves().counters().done[0], 1u);
}

TEST(Save, SnapshotBytesInFlightAreBoundedOnBothSides) {
  CheckpointOptions options = WithCheckpoints();
  options.save_inflight_bytes_max = 96 * 4 + 96 * 3;  // 96 bytes a token in canonical form
  CheckpointHop h({0, HopHarness::kLayers}, options);
  h.Run(kHopPrompt);
  h.Send(1, h.MakeSave(4, 1));
  EXPECT_NE(h.TakeSaveJob(), nullptr);
  h.Send(1, h.MakeSave(4, 2));
  EXPECT_EQ(h.TakeSaveStates(), States{"dropped backpressure"});
  h.Send(1, h.MakeSave(3, 3));
  const auto last = h.TakeSaveJob();
  ASSERT_NE(last, nullptr);
  h.Send(1, h.MakeSave(1, 4));
  EXPECT_EQ(h.TakeSaveStates(), States{"dropped backpressure"});
  EXPECT_EQ(h.hop().saves().bytes(), options.save_inflight_bytes_max);
  h.SaveEnds(last->id);
  h.Send(1, h.MakeSave(1, 5));
  EXPECT_NE(h.TakeSaveJob(), nullptr);
}

TEST(Save, SnapshotsCountInTheStoresBytesAndNeverPushASessionOut) {
  StoreLimits limits = HopHarness::Limits();
  limits.bytes_max = 6144 + 6144 + 96 * 4;  // a state of the toy has blocks of 16 tokens
  CheckpointHop h({0, HopHarness::kLayers}, WithCheckpoints(), limits);
  h.Run(kHopPrompt);
  h.Send(2, h.MakeNamedOpen(2, kHopPrompt));
  h.Send(2, h.Prefill(kHopPrompt, 0, 4, true));
  h.RunAll();
  h.Send(2, Close{Disposition::kKeep});
  const uint64_t before = h.hop().store().bytes_used();
  h.Send(1, h.MakeSave(4, 1));
  EXPECT_NE(h.TakeSaveJob(), nullptr);
  EXPECT_EQ(h.hop().store().bytes_used(), before + 96 * 4);
  h.Send(1, h.MakeSave(1, 2));
  EXPECT_EQ(h.TakeSaveStates(), States{"dropped backpressure"});
  h.Tick(absl::Seconds(1));
  EXPECT_TRUE(h.View(2).has_value());
}

TEST(Save, MoreSavesThanTheBoundAreDropped) {
  CheckpointOptions options = WithCheckpoints();
  options.saves_max = 2;
  CheckpointHop h({0, HopHarness::kLayers}, options);
  h.Run(kHopPrompt);
  for (uint8_t write = 1; write <= 3; ++write) h.Send(1, h.MakeSave(4, write));
  EXPECT_EQ(h.Take<StartSave>().size(), 2u);
  EXPECT_EQ(h.TakeSaveStates(), States{"dropped backpressure"});
}

}  // namespace
}  // namespace kvmesh::shard
