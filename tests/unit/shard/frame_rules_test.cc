// The table of docs/session-states.md, row by row.
#include "services/shard/core/frame_rules.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace kvmesh::shard {
namespace {

using forward::CacheMode;
using forward::Compute;

constexpr LayerRange kOwn{2, 5};
constexpr uint64_t kDigest = 77;
constexpr uint64_t kDigestBeforeLast = 66;
constexpr uint32_t kLastToken = 9;

// Ten tokens of epoch 3 held, after step 4.
HeldFacts Held() {
  return {.newest_epoch = SessionEpoch{3},
          .newest_attempt = StreamAttempt{5},
          .has_state = true,
          .state_epoch = SessionEpoch{3},
          .held = 10,
          .digest = kDigest,
          .digest_before_last = kDigestBeforeLast,
          .last_token = kLastToken,
          .last_step = 4,
          .can_replay = true,
          .can_full_hit = true};
}

Compute Decode(uint32_t step, uint64_t past_len, uint64_t digest, uint32_t token) {
  return {.cache_mode = CacheMode::kDecode,
          .past_len = past_len,
          .layers = kOwn,
          .step = step,
          .tokens = {token},
          .prefix_digest = digest,
          .want_logits = true};
}

Compute Prefill(uint64_t past_len, uint64_t digest, std::vector<uint32_t> tokens) {
  return {.cache_mode = CacheMode::kPrefill,
          .past_len = past_len,
          .layers = kOwn,
          .tokens = std::move(tokens),
          .prefix_digest = digest};
}

struct Case {
  std::string name;
  Compute compute;
  FrameVerdict verdict;
  std::function<void(HeldFacts&)> change = [](HeldFacts&) {};
  SessionEpoch epoch{3};
  StreamAttempt attempt{5};
  bool entry = true;
  bool caching = true;
};

FrameVerdict Miss(MissCause cause) {
  return {FrameAction::kMiss, cause};
}
FrameVerdict Do(FrameAction action) {
  return {action, MissCause::kUnknownSession};
}

Compute Stateless() {
  return {.cache_mode = CacheMode::kStateless, .layers = kOwn, .tokens = {1, 2}};
}
Compute OtherLayers(Compute compute, LayerRange layers) {
  compute.layers = layers;
  return compute;
}
void NoState(HeldFacts& held) {
  held.has_state = false;
}

std::vector<Case> Cases() {
  const Compute step = Decode(5, 10, kDigest, 1);
  const Compute repeat = Decode(4, 9, kDigestBeforeLast, kLastToken);
  const auto absent = [](MissCause cause) {
    return [cause](HeldFacts& held) {
      held.has_state = false;
      held.absent_cause = cause;
    };
  };
  const auto no_rows = [](HeldFacts& held) { held.can_replay = held.can_full_hit = false; };
  const auto newer_stream = [](HeldFacts& held) {
    held.newest_epoch = SessionEpoch{4};
    held.newest_attempt = StreamAttempt{6};
  };
  return {
      {"Row1Stateless", Stateless(), Do(FrameAction::kStateless)},
      {"Row1StatelessWithoutCaching",
       Stateless(),
       Do(FrameAction::kStateless),
       {},
       SessionEpoch{3},
       StreamAttempt{5},
       true,
       false},
      {"Row2OlderEpoch", step, Do(FrameAction::kSuperseded), {}, SessionEpoch{2}},
      {"Row2OlderAttempt",
       step,
       Do(FrameAction::kSuperseded),
       {},
       SessionEpoch{3},
       StreamAttempt{4}},
      {"Row2NewerStreamKnown", step, Do(FrameAction::kSuperseded), newer_stream},
      {"Row2OlderFreshPrefill",
       Prefill(0, 0, {1}),
       Do(FrameAction::kSuperseded),
       {},
       SessionEpoch{2}},
      {"Row3CachingOff",
       step,
       Miss(MissCause::kCachingDisabled),
       {},
       SessionEpoch{3},
       StreamAttempt{5},
       false,
       false},
      {"Row4LayersBegin", OtherLayers(step, {1, 5}), Miss(MissCause::kLayers)},
      {"Row4LayersEnd", OtherLayers(step, {2, 6}), Miss(MissCause::kLayers)},
      {"Row4LayersOfFreshPrefill",
       OtherLayers(Prefill(0, 0, {1}), {2, 6}),
       Miss(MissCause::kLayers),
       {},
       SessionEpoch{4}},
      {"Row5NoEntry",
       Prefill(0, 0, {1}),
       Do(FrameAction::kFresh),
       {},
       SessionEpoch{3},
       StreamAttempt{5},
       false},
      {"Row5NoState", Prefill(0, 0, {1}), Do(FrameAction::kFresh), NoState},
      {"Row5NewerEpoch", Prefill(0, 0, {1}), Do(FrameAction::kFresh), {}, SessionEpoch{4}},
      {"Row6SameEpoch", Prefill(0, 0, {1}), Miss(MissCause::kHeld)},
      {"Row7NoEntryDecode",
       step,
       Miss(MissCause::kUnknownSession),
       {},
       SessionEpoch{3},
       StreamAttempt{5},
       false},
      {"Row7NoEntryPrefill",
       Prefill(10, kDigest, {1}),
       Miss(MissCause::kUnknownSession),
       {},
       SessionEpoch{3},
       StreamAttempt{5},
       false},
      {"Row7EvictedLru", step, Miss(MissCause::kEvictedLru), absent(MissCause::kEvictedLru)},
      {"Row7EvictedTtl", step, Miss(MissCause::kEvictedTtl), absent(MissCause::kEvictedTtl)},
      {"Row7Poisoned", Prefill(10, kDigest, {1}), Miss(MissCause::kPoisoned),
       absent(MissCause::kPoisoned)},
      {"Row8OlderStateDecode", step, Miss(MissCause::kEpoch), {}, SessionEpoch{4}},
      {"Row8OlderStatePrefill",
       Prefill(10, kDigest, {1}),
       Miss(MissCause::kEpoch),
       {},
       SessionEpoch{4}},
      {"Row9HeldLess", Prefill(11, kDigest, {1}), Miss(MissCause::kHeld)},
      {"Row9HeldMore", Prefill(9, kDigest, {1}), Miss(MissCause::kHeld)},
      {"Row10Digest", Prefill(10, kDigest + 1, {1}), Miss(MissCause::kDigest)},
      {"Row11Append", Prefill(10, kDigest, {1, 2}), Do(FrameAction::kAppend)},
      {"Row12FullHit", Prefill(10, kDigest, {}), Do(FrameAction::kFullHit)},
      {"Row13NoRow", Prefill(10, kDigest, {}), Miss(MissCause::kNoStoredRow), no_rows},
      {"Row14RepeatHeldLess", Decode(4, 10, kDigestBeforeLast, kLastToken), Miss(MissCause::kHeld)},
      {"Row14RepeatHeldMore", Decode(4, 8, kDigestBeforeLast, kLastToken), Miss(MissCause::kHeld)},
      {"Row15RepeatDigest", Decode(4, 9, kDigest, kLastToken), Miss(MissCause::kDigest)},
      {"Row15RepeatToken", Decode(4, 9, kDigestBeforeLast, kLastToken + 1),
       Miss(MissCause::kDigest)},
      {"Row16Repeat", repeat, Do(FrameAction::kReplay)},
      {"Row17RepeatNothingStored", repeat, Miss(MissCause::kNoStoredRow), no_rows},
      {"Row18StepAhead", Decode(6, 10, kDigest, 1), Miss(MissCause::kStep)},
      {"Row18StepBehind", Decode(3, 8, kDigest, 1), Miss(MissCause::kStep)},
      {"Row18NoWrapAround", Decode(0, 10, kDigest, 1), Miss(MissCause::kStep),
       [](HeldFacts& held) { held.last_step = UINT32_MAX; }},
      {"Row19HeldLess", Decode(5, 11, kDigest, 1), Miss(MissCause::kHeld)},
      {"Row19HeldMore", Decode(5, 9, kDigest, 1), Miss(MissCause::kHeld)},
      {"Row20Digest", Decode(5, 10, kDigest + 1, 1), Miss(MissCause::kDigest)},
      {"Row21Step", step, Do(FrameAction::kStep)},
      {"Row21StepWithoutStoredRow", step, Do(FrameAction::kStep), no_rows},
      {"Row21StepOfNewerAttempt",
       step,
       Do(FrameAction::kStep),
       {},
       SessionEpoch{3},
       StreamAttempt{6}},
  };
}

class FrameRules : public ::testing::TestWithParam<Case> {};

TEST_P(FrameRules, RowGivesItsVerdict) {
  const Case& test = GetParam();
  HeldFacts held = Held();
  if (test.change) test.change(held);
  const FrameVerdict verdict =
      JudgeFrame({.epoch = test.epoch, .attempt = test.attempt, .compute = &test.compute},
                 test.entry ? &held : nullptr, kOwn, test.caching);
  EXPECT_EQ(static_cast<int>(verdict.action), static_cast<int>(test.verdict.action));
  EXPECT_EQ(MissCauseName(verdict.cause), MissCauseName(test.verdict.cause));
}

INSTANTIATE_TEST_SUITE_P(Table, FrameRules, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(MissCauses, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (int i = 0; i < kMissCauseCount; ++i) {
    names.insert(std::string(MissCauseName(static_cast<MissCause>(i))));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kMissCauseCount));
  EXPECT_EQ(names.count("unknown"), 0u);
}

}  // namespace
}  // namespace kvmesh::shard
