// What a shard saves on its own account: sessions that it pushes out, and all of them when it
// leaves.
#include <gtest/gtest.h>

#include "tests/unit/shard/checkpoint_testing.h"

namespace kvmesh::shard {
namespace {

using forward::Close;
using forward::Disposition;
using forward::SaveReason;

constexpr uint64_t kState = 6144;  // bytes of the toy's state of up to 16 tokens

uint64_t Dropped(CheckpointHop& h, SaveDrop drop, SaveReason reason) {
  return h.hop().saves().counters().dropped[static_cast<size_t>(drop)][static_cast<size_t>(reason)];
}

// Session `number` on a stream of its own has run the prompt and is idle.
void LeaveIdle(CheckpointHop& h, uint8_t number) {
  h.Send(number, h.MakeNamedOpen(number, kHopPrompt));
  h.Send(number, h.Prefill(kHopPrompt, 0, 4, true));
  h.RunAll();
  h.Send(number, Close{Disposition::kKeep});
  ASSERT_TRUE(h.TakeEnd()->ok());
  h.TakeAll();
}

TEST(Fragments, AnIdleSessionThatTheCountPushesOutIsSavedWholeWithoutAWait) {
  CheckpointHop h({0, 6}, WithCheckpoints(), {.sessions_max = 1, .bytes_max = 100000});
  LeaveIdle(h, 1);
  h.Send(2, h.MakeNamedOpen(2, kHopPrompt));
  const auto job = h.TakeSaveJob();
  ASSERT_NE(job, nullptr);
  EXPECT_TRUE(job->fragment());
  EXPECT_EQ(job->reason, SaveReason::kEvict);
  EXPECT_EQ(job->snapshot.tokens, kHopPrompt);
  EXPECT_FALSE(job->snapshot.last_row.empty());
  EXPECT_EQ(job->snapshot.cache_namespace, ToyNamespace());
  EXPECT_EQ(job->time_limit, h.hop().options().checkpoints.evict_save_timeout);
  EXPECT_EQ(h.TakeAnswers<forward::Opened>().size(), 1u);
}

TEST(Fragments, TheNewcomersOpenWaitsForTheBytesAndComputeDoesNot) {
  StoreLimits limits{
      .sessions_max = 8, .bytes_max = kState + 500, .block_tokens = 1, .bytes_per_token = 60};
  CheckpointHop h({0, 6}, WithCheckpoints(), limits);
  LeaveIdle(h, 1);
  h.Send(2, h.MakeNamedOpen(2, kHopPrompt));  // reserves 6,000
  h.Send(2, h.Prefill(kHopPrompt, 0, 4, true));
  const auto job = h.TakeSaveJob();
  ASSERT_NE(job, nullptr);
  ASSERT_LE(job->snapshot.bytes, 500u);
  EXPECT_EQ(h.TakeAnswers<forward::Opened>().size(), 1u);  // beside so small a snapshot it fits

  CheckpointOptions options = WithCheckpoints();
  limits.bytes_max = 6000 + 300;  // but not beside this one: 384 bytes
  CheckpointHop tight({0, 6}, options, limits);
  LeaveIdle(tight, 1);
  tight.Send(2, tight.MakeNamedOpen(2, kHopPrompt));
  tight.Send(2, tight.Prefill(kHopPrompt, 0, 4, true));
  const auto waited_for = tight.TakeSaveJob();
  ASSERT_NE(waited_for, nullptr);
  EXPECT_TRUE(tight.TakeAnswers<forward::Opened>().empty());
  EXPECT_EQ(tight.RunAll(), 0);
  tight.SaveEnds(waited_for->id);
  EXPECT_EQ(tight.TakeAnswers<forward::Opened>().size(), 1u);
  EXPECT_EQ(tight.RunAll(), 1);
  EXPECT_EQ(tight.TakeTokens(), Generated(1));
}

TEST(Fragments, TheWaitIsBoundedAndEndsInARefusalThatTheRouterRepeats) {
  const StoreLimits limits{
      .sessions_max = 8, .bytes_max = 6300, .block_tokens = 1, .bytes_per_token = 60};
  CheckpointHop h({0, 6}, WithCheckpoints(), limits);
  LeaveIdle(h, 1);
  h.Send(2, h.MakeNamedOpen(2, kHopPrompt));
  const auto job = h.TakeSaveJob();
  h.Tick(h.hop().options().checkpoints.evict_save_timeout - absl::Milliseconds(1));
  EXPECT_FALSE(h.TakeEnd().has_value());
  h.Tick(absl::Milliseconds(1));
  const std::optional<absl::Status> end = h.TakeEnd();
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(ReasonOf(*end), reason::kNoRoom);
  EXPECT_TRUE(RetryDelayOf(*end).has_value());
  h.SaveEnds(job->id, SaveDrop::kDeadline);
  h.Send(3, h.MakeNamedOpen(3, kHopPrompt));
  EXPECT_EQ(h.TakeAnswers<forward::Opened>().size(), 1u);
}

TEST(Fragments, WhatTheTtlPushesOutIsSavedToo) {
  CheckpointHop h({0, 6}, WithCheckpoints(), {.sessions_max = 3, .bytes_max = 100000});
  LeaveIdle(h, 1);
  h.Send(2, h.MakeNamedOpen(2, kHopPrompt));
  h.Send(2, h.Prefill(kHopPrompt, 0, 4, true));
  h.RunAll();
  h.Lose(2);
  h.TakeAll();
  h.Tick(h.hop().options().store.orphan_ttl);
  EXPECT_EQ(h.Take<StartSave>().size(), 1u);
  h.Tick(h.hop().options().store.ttl);
  EXPECT_EQ(h.Take<StartSave>().size(), 1u);
}

TEST(Fragments, ASessionBelowTheGateIsNotSaved) {
  for (const uint32_t min_tokens : {4U, 5U}) {
    CheckpointOptions options = WithCheckpoints();
    options.min_tokens = min_tokens;
    CheckpointHop h({0, 6}, options, {.sessions_max = 1, .bytes_max = 100000});
    LeaveIdle(h, 1);
    h.Send(2, h.MakeNamedOpen(2, kHopPrompt));
    EXPECT_EQ(h.Take<StartSave>().size(), min_tokens == 4 ? 1u : 0u);
    EXPECT_EQ(Dropped(h, SaveDrop::kTooShort, SaveReason::kEvict), min_tokens == 4 ? 0u : 1u);
  }
}

TEST(Fragments, ASessionThatDoesNotFitTheBytesInFlightIsDroppedNotWaitedFor) {
  CheckpointOptions options = WithCheckpoints();
  options.save_inflight_bytes_max = 96 * 4 - 1;
  CheckpointHop h({0, 6}, options, {.sessions_max = 1, .bytes_max = 100000});
  LeaveIdle(h, 1);
  h.Send(2, h.MakeNamedOpen(2, kHopPrompt));
  EXPECT_TRUE(h.Take<StartSave>().empty());
  EXPECT_EQ(Dropped(h, SaveDrop::kBackpressure, SaveReason::kEvict), 1u);
  EXPECT_EQ(h.TakeAnswers<forward::Opened>().size(), 1u);
}

TEST(Fragments, WithoutAnArbiterNothingIsSavedAlone) {
  CheckpointOptions options = WithCheckpoints();
  options.fragments = false;
  CheckpointHop h({0, 6}, options, {.sessions_max = 3, .bytes_max = 100000});
  LeaveIdle(h, 1);
  h.Drain();
  EXPECT_TRUE(h.Take<StartSave>().empty());
}

TEST(Fragments, DrainSavesEverySessionAndNamesThePositionOfALiveOne) {
  CheckpointHop h;
  LeaveIdle(h, 2);
  h.Run(kHopPrompt);
  h.Drain();
  const auto saves = h.Take<StartSave>();
  ASSERT_EQ(saves.size(), 2u);
  for (const StartSave& save : saves) {
    EXPECT_EQ(save.job->reason, SaveReason::kShutdown);
    EXPECT_EQ(save.job->snapshot.tokens, kHopPrompt);
  }
  std::optional<ErrorInfo> info = ErrorInfoOf(*h.TakeEnd());
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason, reason::kDraining);
  EXPECT_EQ(info->metadata["held"], "4");
  EXPECT_EQ(info->metadata["tokens_sha256"], TokensSha256(kHopPrompt).ToHex());
  EXPECT_EQ(info->metadata["key"],
            KeyOf(ToyNamespace(), kHopPrompt, testing::ToyVocabulary()).ToHex());
  EXPECT_FALSE(h.hop().quiet());
  for (const StartSave& save : saves) h.SaveEnds(save.job->id);
  EXPECT_TRUE(h.hop().quiet());
}

TEST(Fragments, DrainTakesTheSnapshotAfterTheOutstandingAnswer) {
  CheckpointHop h;
  h.Run(kHopPrompt);
  h.Send(1, h.Decode(Sequence(1), 1));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Drain();
  EXPECT_TRUE(h.Take<StartSave>().empty());
  h.Finish(*job);
  EXPECT_EQ(h.TakeTokens().size(), 1u);
  const auto save = h.TakeSaveJob();
  ASSERT_NE(save, nullptr);
  EXPECT_EQ(save->snapshot.tokens, Sequence(1));
  EXPECT_EQ(h.TakeEndReason(), reason::kDraining);
}

TEST(Fragments, DrainSavesAnOrphanOnceItsRunningStepHasEnded) {
  CheckpointHop h;
  h.Run(kHopPrompt);
  h.Send(1, h.Decode(Sequence(1), 1));
  std::optional<Job> job = h.Start();
  ASSERT_TRUE(job.has_value());
  h.Lose(1);
  h.Drain();
  EXPECT_TRUE(h.Take<StartSave>().empty());
  h.Finish(*job);
  const auto save = h.TakeSaveJob();
  ASSERT_NE(save, nullptr);
  EXPECT_EQ(save->snapshot.tokens, Sequence(1));
}

}  // namespace
}  // namespace kvmesh::shard
