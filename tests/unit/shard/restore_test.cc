// Restores: a hop that starts from slabs, whatever split wrote them.
#include <gtest/gtest.h>

#include "tests/unit/shard/checkpoint_testing.h"

namespace kvmesh::shard {
namespace {

// The slabs of one write of a whole model, one for each range, of exactly these tokens.
std::vector<std::string> SlabsOf(const std::vector<uint32_t>& tokens,
                                 const std::vector<LayerRange>& ranges) {
  std::vector<std::string> files;
  testing::ToyEngine whole({.layers = {0, HopHarness::kLayers}});
  SessionState state = whole.NewState();
  std::vector<std::vector<float>> rows_after;  // the last row after each layer
  for (uint32_t end = 1; end <= HopHarness::kLayers; ++end) {
    testing::ToyEngine part({.layers = {0, end}});
    SessionState fresh = part.NewState();
    StepItem item{.state = &fresh, .tokens = tokens};
    part.Step(absl::MakeSpan(&item, 1));
    EXPECT_TRUE(item.status.ok());
    rows_after.emplace_back(item.hidden_out.end() - testing::kToyHiddenSize, item.hidden_out.end());
    if (end == HopHarness::kLayers) state = std::move(fresh);
  }
  for (const LayerRange range : ranges) {
    SaveJob job{.snapshot = {.cache_namespace = ToyNamespace(),
                             .layers = range,
                             .tokens = tokens,
                             .last_row = rows_after[range.end - 1]}};
    job.snapshot.state.resize(HopHarness::kLayers);
    for (uint32_t layer = range.begin; layer < range.end; ++layer) {
      job.snapshot.state[layer] = *state[layer]->Snapshot(tokens.size());
    }
    testing::ToyEngine part({.layers = range});
    files.push_back(SlabOf(job, ToyFacts(part), Write(9)));
  }
  return files;
}

forward::HopRestore RestoreFrom(const std::vector<std::string>& files, uint64_t tokens,
                                uint32_t last_step = 0, uint32_t hop_index = 0) {
  forward::HopRestore restore{.hop_index = hop_index, .tokens = tokens, .last_step = last_step};
  for (const std::string& file : files) restore.slabs.push_back(RefOf(file));
  return restore;
}

// Opens stream 1 with a restore; nothing is read yet.
RestoreJob StartsRestore(CheckpointHop& h, const std::vector<uint32_t>& history,
                         const forward::HopRestore& restore) {
  forward::Open open = h.MakeNamedOpen(1, history);
  open.restore = {restore};
  h.Send(1, open);
  std::vector<StartRestore> starts = h.Take<StartRestore>();
  EXPECT_EQ(starts.size(), 1u);
  return starts.empty() ? RestoreJob{} : starts.front().job;
}

// The same, done.
void Restores(CheckpointHop& h, const std::vector<uint32_t>& history,
              const std::vector<std::string>& files, const forward::HopRestore& restore) {
  const RestoreJob job = StartsRestore(h, history, restore);
  h.RestoreEnds(1, Restore(job, files, h.engine()));
}

TEST(Restore, TheSuffixRunsOnRestoredStateAsIfAllHadBeenPrefilled) {
  const std::vector<std::string> files = SlabsOf(kHopPrompt, {{0, 6}});
  CheckpointHop h;
  const std::vector<uint32_t> all = Sequence(3);
  Restores(h, all, files, RestoreFrom(files, 4));
  const auto opened = h.TakeAnswers<forward::Opened>();
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_TRUE(opened[0].restored);
  EXPECT_EQ(opened[0].held, 4u);
  EXPECT_EQ(opened[0].epoch, SessionEpoch{1});
  h.Send(1, h.Prefill(all, 4, all.size(), true));
  ASSERT_EQ(h.RunAll(), 1);
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(4)[3]});
  EXPECT_EQ(h.hop().counters().restores, 1u);
}

TEST(Restore, FramesWaitUntilTheStateIsThere) {
  const std::vector<std::string> files = SlabsOf(kHopPrompt, {{0, 6}});
  CheckpointHop h;
  const std::vector<uint32_t> all = Sequence(1);
  const RestoreJob job = StartsRestore(h, all, RestoreFrom(files, 4));
  h.Send(1, h.Prefill(all, 4, 5, true));
  EXPECT_EQ(h.RunAll(), 0);
  EXPECT_TRUE(h.TakeAnswers<forward::Opened>().empty());
  EXPECT_FALSE(h.TakeEnd().has_value());
  h.RestoreEnds(1, Restore(job, files, h.engine()));
  EXPECT_EQ(h.RunAll(), 1);
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(2)[1]});
}

TEST(Restore, ACutRowServesAnyShorterTextOfItsOwn) {
  const std::vector<uint32_t> stored = Sequence(20);
  const std::vector<std::string> files = SlabsOf(stored, {{0, 6}});
  for (const uint64_t tokens : {1, 2, 4, 23, 24}) {
    CheckpointHop h;
    const std::vector<uint32_t> all = Sequence(21);
    Restores(h, all, files, RestoreFrom(files, tokens));
    h.Send(1, h.Prefill(all, tokens, all.size(), true));
    ASSERT_EQ(h.RunAll(), 1) << tokens;
    EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(22)[21]}) << tokens;
  }
}

TEST(Restore, AnotherSplitReadsOnlyItsOwnLayers) {
  const std::vector<uint32_t> all = Sequence(2);
  const std::vector<std::vector<LayerRange>> splits = {
      {{0, 6}}, {{0, 3}, {3, 6}}, {{0, 2}, {2, 4}, {4, 6}}, {{0, 1}, {1, 5}, {5, 6}}};
  for (const auto& written : splits) {
    const std::vector<std::string> files = SlabsOf(kHopPrompt, written);
    for (const LayerRange own : {LayerRange{0, 3}, LayerRange{0, 4}, LayerRange{0, 5}}) {
      CheckpointHop h(own);
      const RestoreJob job = StartsRestore(h, all, RestoreFrom(files, 4));
      for (const SlabRead& read : job.reads) {
        EXPECT_TRUE(std::all_of(read.layers.begin(), read.layers.end(),
                                [&](uint32_t layer) { return layer < own.end; }));
      }
      h.RestoreEnds(1, Restore(job, files, h.engine()));
      h.Take<SendDown>();
      h.Send(1, h.Prefill(all, 4, all.size(), false));
      h.RunAll();
      const auto sent = h.Take<SendDown>();
      ASSERT_EQ(sent.size(), 1u);
      CheckpointHop cold(own);
      cold.Send(1, cold.MakeNamedOpen(1, all));
      cold.Send(1, cold.Prefill(all, 0, 4, false));
      cold.Send(1, cold.Prefill(all, 4, all.size(), false));
      cold.RunAll();
      const auto sent_cold = cold.Take<SendDown>();
      ASSERT_EQ(sent_cold.size(), 2u);
      EXPECT_EQ(std::get<forward::Compute>(sent[0].frame).hidden,
                std::get<forward::Compute>(sent_cold[1].frame).hidden);
    }
  }
}

TEST(Restore, AFullHitAnswersFromTheStoredRowWithoutALayer) {
  const std::vector<std::string> files = SlabsOf(kHopPrompt, {{0, 6}});
  CheckpointHop h;
  Restores(h, kHopPrompt, files, RestoreFrom(files, 4));
  h.Send(1, h.Prefill(kHopPrompt, 4, 4, true));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  EXPECT_TRUE(job->from_row);
  h.Finish(*job);
  EXPECT_EQ(h.TakeTokens(), Generated(1));
  EXPECT_EQ(h.hop().counters().full_hits, 1u);
  // And goes on from there.
  h.Send(1, h.Decode(Sequence(1), 1));
  h.RunAll();
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(2)[1]});
}

TEST(Restore, AFullHitPassesAHopWhoseSlabsHaveNoRowOfItsOwnEnd) {
  const std::vector<std::string> files = SlabsOf(kHopPrompt, {{0, 6}});
  CheckpointHop h({0, 3});
  Restores(h, kHopPrompt, files, RestoreFrom(files, 4));
  h.Take<SendDown>();
  h.Send(1, h.Prefill(kHopPrompt, 4, 4, true));
  EXPECT_EQ(h.RunAll(), 0);
  const auto sent = h.Take<SendDown>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(std::get<forward::Compute>(sent[0].frame).tokens.empty());
  EXPECT_TRUE(std::get<forward::Compute>(sent[0].frame).want_logits);
}

TEST(Restore, AtAnInnerCutPointTheTailHasNoRowForAFullHit) {
  const std::vector<std::string> files = SlabsOf(Sequence(4), {{0, 6}});
  CheckpointHop h;
  Restores(h, kHopPrompt, files, RestoreFrom(files, 4));
  h.Send(1, h.Prefill(kHopPrompt, 4, 4, true));
  h.RunAll();
  EXPECT_EQ(h.TakeMissCause(), "no_stored_row");
}

TEST(Restore, ARepairedTailAnswersTheStepThatItsStateHasRun) {
  // State of n + 1 tokens: the lost tail had run step 2, whose answer nobody has.
  const std::vector<uint32_t> all = Sequence(2);
  const std::vector<std::string> files = SlabsOf(all, {{0, 6}});
  CheckpointHop h;
  Restores(h, all, files, RestoreFrom(files, all.size(), /*last_step=*/2));
  h.Send(1, h.Decode(all, 2));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  EXPECT_TRUE(job->from_row);
  h.Finish(*job);
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(3)[2]});
  EXPECT_EQ(h.View(1)->held, all.size());
  h.Send(1, h.Decode(Sequence(3), 3));
  h.RunAll();
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(4)[3]});
}

TEST(Restore, ARepairedTailRunsTheStepThatItsStateHasNotRun) {
  const std::vector<uint32_t> all = Sequence(2);
  const std::vector<std::string> files = SlabsOf(Sequence(1), {{0, 6}});
  CheckpointHop h;
  Restores(h, all, files, RestoreFrom(files, all.size() - 1, /*last_step=*/1));
  h.Send(1, h.Decode(all, 2));
  h.RunAll();
  EXPECT_EQ(h.TakeTokens(), std::vector<uint32_t>{Generated(3)[2]});
}

TEST(Restore, ARepairedHopSendsTheRowOfItsLastStepOnAgain) {
  const std::vector<uint32_t> all = Sequence(2);
  const std::vector<std::string> files = SlabsOf(all, {{0, 3}});
  CheckpointHop cold({0, 3});
  cold.Run(all);
  const std::string row =
      std::get<forward::Compute>(cold.Take<SendDown>().back().frame)
          .hidden.substr((all.size() - 1) * testing::kToyHiddenSize * sizeof(float));
  CheckpointHop h({0, 3});
  Restores(h, all, files, RestoreFrom(files, all.size(), 2));
  h.Take<SendDown>();
  h.Send(1, h.Decode(all, 2));
  EXPECT_EQ(h.RunAll(), 0);
  const auto sent = h.Take<SendDown>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(std::get<forward::Compute>(sent[0].frame).hidden, row);
}

TEST(Restore, AFailureIsAMissThatNamesSlabAndCauseAndLeavesNoState) {
  const std::vector<std::string> files = SlabsOf(kHopPrompt, {{0, 3}, {3, 6}});
  CheckpointHop h;
  const RestoreJob job = StartsRestore(h, kHopPrompt, RestoreFrom(files, 4));
  std::vector<std::string> broken = files;
  broken[1][MetaOf(files[1]).payload_offset()] ^= 1;
  h.RestoreEnds(1, Restore(job, broken, h.engine()));
  const std::optional<absl::Status> end = h.TakeEnd();
  ASSERT_TRUE(end.has_value());
  std::optional<ErrorInfo> info = ErrorInfoOf(*end);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason, reason::kCacheMiss);
  EXPECT_EQ(info->metadata["cause"], "restore_failed:corrupt");
  EXPECT_EQ(info->metadata["hop"], "0");
  EXPECT_EQ(info->metadata["slab_key"], RefOf(files[1]).key.ToHex());
  EXPECT_EQ(info->metadata["slab_layers"], "3:6");
  EXPECT_EQ(info->metadata["slab_write_id"], Write(9).ToHex());
  EXPECT_EQ(info->metadata["slab_store"], kStore);
  EXPECT_EQ(info->metadata["slab_is_bad"], "true");
  EXPECT_EQ(h.View(1)->held, 0u);
  EXPECT_EQ(h.View(1)->phase, SessionPhase::kOrphaned);
}

TEST(Restore, AStoreThatDoesNotAnswerIsNoBadSlab) {
  const std::vector<std::string> files = SlabsOf(kHopPrompt, {{0, 6}});
  CheckpointHop h;
  StartsRestore(h, kHopPrompt, RestoreFrom(files, 4));
  h.RestoreEnds(1, RestoreFailure{.fault = RestoreFault::kDeadline, .slab = RefOf(files[0])});
  std::optional<ErrorInfo> info = ErrorInfoOf(*h.TakeEnd());
  EXPECT_EQ(info->metadata["cause"], "restore_failed:deadline");
  EXPECT_EQ(info->metadata["slab_is_bad"], "false");
}

TEST(Restore, AFailureLeavesTheStateThatIsHeldAlone) {
  const std::vector<std::string> files = SlabsOf(kHopPrompt, {{0, 6}});
  CheckpointHop h;
  h.Run(kHopPrompt);
  h.Lose(1);
  forward::Open open = h.MakeNamedOpen(1, kHopPrompt, 1, 2);
  open.restore = {RestoreFrom(files, 4)};
  h.Send(2, open);
  h.RestoreEnds(2, RestoreFailure{.fault = RestoreFault::kNotFound});
  EXPECT_EQ(h.TakeMissCause(), "restore_failed:not_found");
  EXPECT_EQ(h.View(1)->held, 4u);
}

TEST(Restore, AStreamThatEndsCancelsTheReadingAndItsResultIsDropped) {
  const std::vector<std::string> files = SlabsOf(kHopPrompt, {{0, 6}});
  for (const bool lost : {true, false}) {
    CheckpointHop h;
    const RestoreJob job = StartsRestore(h, kHopPrompt, RestoreFrom(files, 4));
    EXPECT_TRUE(h.Take<CancelRestore>().empty());
    if (lost) h.Lose(1);
    if (!lost) h.Send(1, forward::Close{forward::Disposition::kDrop});
    EXPECT_EQ(h.Take<CancelRestore>().size(), 1u);
    h.RestoreEnds(1, Restore(job, files, h.engine()));
    EXPECT_EQ(h.View(1).has_value() ? h.View(1)->held : 0, 0u);
    EXPECT_TRUE(h.hop().quiet());
  }
}

TEST(Restore, AResultOnLoanToAnOlderStreamDoesNotReplaceRestoredState) {
  const std::vector<std::string> files = SlabsOf(kHopPrompt, {{0, 6}});
  CheckpointHop h;
  h.Run(kHopPrompt);
  h.Send(1, h.Decode(Sequence(1), 1));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Lose(1);
  forward::Open open = h.MakeNamedOpen(1, kHopPrompt, 2, 2);
  open.restore = {RestoreFrom(files, 4)};
  h.Send(2, open);
  const RestoreJob restore = h.Take<StartRestore>().at(0).job;
  h.RestoreEnds(2, Restore(restore, files, h.engine()));
  h.Finish(*job);
  EXPECT_EQ(h.View(1)->held, 4u);
  h.Send(2, h.Prefill(kHopPrompt, 4, 4, true));
  h.RunAll();
  EXPECT_EQ(h.TakeTokens(), Generated(1));
}

TEST(Restore, WhatDoesNotFitTheOpenIsRefusedAtTheEdge) {
  const std::vector<std::string> files = SlabsOf(kHopPrompt, {{0, 3}});
  const std::vector<std::string> whole = SlabsOf(kHopPrompt, {{0, 6}});
  const auto refused = [](CheckpointHop& h, const forward::HopRestore& restore) {
    forward::Open open = h.MakeNamedOpen(1, kHopPrompt);
    open.restore = {restore};
    h.Send(1, open);
    return std::string(h.TakeEnd().value_or(absl::OkStatus()).message());
  };
  CheckpointHop h;
  EXPECT_EQ(refused(h, RestoreFrom(whole, 5)),
            "restore.tokens is 5; history has 4 ids, reserve_tokens is 100");
  EXPECT_EQ(refused(h, RestoreFrom(files, 4)),
            "restore.slabs do not have layer 3 of this shard's 0:6");
  EXPECT_EQ(refused(h, RestoreFrom(whole, 4, 0, 1)), "restore.hop_index is 1; the hops are 0 to 0");
  HopHarness without;
  forward::Open open = without.MakeOpen(1, kHopPrompt);
  open.restore = {RestoreFrom(whole, 4)};
  without.Send(1, open);
  EXPECT_EQ(without.TakeEndReason(), reason::kUnknownFeature);
}

TEST(Restore, TheNextHopsShareTravelsOnAtOnce) {
  const std::vector<std::string> files = SlabsOf(kHopPrompt, {{0, 3}, {3, 6}});
  CheckpointHop h({0, 3});
  forward::Open open = h.MakeNamedOpen(1, kHopPrompt);
  open.restore = {RestoreFrom(files, 4, 0, 0), RestoreFrom(files, 4, 0, 1)};
  h.Send(1, open);
  const auto down = h.Take<OpenDown>();
  ASSERT_EQ(down.size(), 1u);
  EXPECT_EQ(down[0].open.restore, std::vector<forward::HopRestore>{open.restore[1]});
  EXPECT_EQ(down[0].open.hop_index, 1u);
}

}  // namespace
}  // namespace kvmesh::shard
