// What is saved, and where, on both sides of every gate.
#include "services/router/core/save_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/slab/format.h"
#include "tests/testing/fake_tokenizer.h"

namespace kvmesh::router {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr bool kCut = true;
constexpr bool kNoCut = false;

KeyText Letters(size_t tokens) {
  KeyText text;
  text.Append(std::vector<uint32_t>(tokens, 0), testing::LetterTokenizer());
  return text;
}

// The last `tail` tokens are lone halves of a character.
KeyText EndingInsideCharacter(size_t tokens) {
  const testing::FakeTokenizer tokenizer({"a", "\xc3"});
  KeyText text;
  std::vector<uint32_t> ids(tokens, 0);
  ids.back() = 1;
  text.Append(ids, tokenizer);
  return text;
}

std::vector<SavePoint> Cold(const CheckpointGates& gates, bool cut, uint64_t tokens,
                            uint64_t restored = 0) {
  return ColdSavePoints(gates, cut, Letters(tokens), tokens, restored);
}

TEST(SavePolicy, TheGatesDefaultToTheDesigns) {
  const CheckpointGates gates;
  EXPECT_EQ(gates.min_tokens, 512u);
  EXPECT_EQ(gates.cold_min_tokens, 512u);
  EXPECT_EQ(gates.cold_max_tokens, 30'000u);
  EXPECT_EQ(gates.continued_interval, 2'048u);
  EXPECT_EQ(gates.boundary_trim_tokens, 32u);
  EXPECT_EQ(gates.boundary_align_tokens, 256u);
  EXPECT_TRUE(CheckGates(gates).ok());
}

TEST(SavePolicy, GatesThatNothingCouldPassAreRefusedByName) {
  CheckpointGates gates;
  gates.boundary_align_tokens = 0;
  EXPECT_THAT(std::string(CheckGates(gates).message()),
              ::testing::HasSubstr("boundary_align_tokens is 0"));
  gates = {};
  gates.cold_max_tokens = 511;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckGates(gates)));
  gates.cold_max_tokens = 512;
  EXPECT_TRUE(CheckGates(gates).ok());
}

TEST(SavePolicy, AColdPromptIsSavedAtItsExactEndFrom512TokensOn) {
  EXPECT_THAT(Cold({}, kCut, 511), IsEmpty());
  for (const uint64_t tokens : {512u, 513u, 2000u}) {
    const std::vector<SavePoint> points = Cold({}, kCut, tokens);
    ASSERT_THAT(points, SizeIs(1));
    EXPECT_EQ(points[0].at_tokens, tokens);
    EXPECT_FALSE(points[0].exact);
  }
}

TEST(SavePolicy, AColdSuffixCountsByWhatWasPrefilled) {
  EXPECT_THAT(Cold({}, kCut, 1000, 489), IsEmpty());
  EXPECT_THAT(Cold({}, kCut, 1000, 488), SizeIs(1));
}

TEST(SavePolicy, ARowBelowTheMinimumIsTooShortHoweverMuchWasPrefilled) {
  CheckpointGates gates;
  gates.cold_min_tokens = 1;
  const std::vector<SavePoint> points = Cold(gates, kCut, 511);
  ASSERT_THAT(points, SizeIs(1));
  EXPECT_EQ(points[0].at_tokens, 0u);
  EXPECT_EQ(points[0].skipped, "too_short");
}

TEST(SavePolicy, ALongPromptIsCutAtTheMaximum) {
  CheckpointGates gates;
  gates.cold_max_tokens = 1000;
  EXPECT_EQ(Cold(gates, kCut, 1000)[0].at_tokens, 1000u);
  EXPECT_EQ(Cold(gates, kCut, 1001)[0].at_tokens, 1000u);
}

TEST(SavePolicy, StateThatCannotBeCutGetsARowAtTheTrimmedAndAlignedBoundaryToo) {
  std::vector<SavePoint> points = Cold({}, kNoCut, 800);
  ASSERT_THAT(points, SizeIs(2));
  EXPECT_EQ(points[0].at_tokens, 768u);
  EXPECT_EQ(points[1].at_tokens, 800u);
  EXPECT_TRUE(points[0].exact);
  EXPECT_TRUE(points[1].exact);
  // One token less than the trim leaves behind the boundary: the one before it.
  points = Cold({}, kNoCut, 799);
  ASSERT_THAT(points, SizeIs(2));
  EXPECT_EQ(points[0].at_tokens, 512u);
  // The boundary before that would be too short: the end alone.
  EXPECT_THAT(Cold({}, kNoCut, 543), SizeIs(1));
  EXPECT_THAT(Cold({}, kNoCut, 544), SizeIs(2));
}

TEST(SavePolicy, ABoundaryThatWasRestoredIsNotSavedAgain) {
  const std::vector<SavePoint> points = Cold({}, kNoCut, 1300, 768);
  ASSERT_THAT(points, SizeIs(2));
  EXPECT_EQ(points[0].at_tokens, 1024u);
  CheckpointGates gates;
  gates.cold_min_tokens = 1;
  EXPECT_THAT(Cold(gates, kNoCut, 800, 768), SizeIs(1));
}

TEST(SavePolicy, AnEndInsideACharacterMovesBackOrIsNoRow) {
  const KeyText text = EndingInsideCharacter(600);
  EXPECT_EQ(ColdSavePoints({}, kCut, text, 600, 0)[0].at_tokens, 599u);
  const std::vector<SavePoint> points = ColdSavePoints({}, kNoCut, text, 600, 0);
  ASSERT_THAT(points, SizeIs(2));
  EXPECT_EQ(points[0].at_tokens, 512u);
  EXPECT_EQ(points[1].skipped, "inside_character");
}

TEST(SavePolicy, ContinuedIsDueEveryInterval) {
  const KeyText text = Letters(5000);
  EXPECT_EQ(ContinuedSavePoint({}, kCut, text, 3000, 2047, 0), std::nullopt);
  EXPECT_EQ(ContinuedSavePoint({}, kCut, text, 3000, 2048, 0)->at_tokens, 3000u);
  EXPECT_EQ(ContinuedSavePoint({}, kCut, text, 3000, 4095, 2048), std::nullopt);
  EXPECT_EQ(ContinuedSavePoint({}, kCut, text, 5000, 4096, 2048)->at_tokens, 5000u);
  EXPECT_TRUE(ContinuedSavePoint({}, kNoCut, text, 3000, 2048, 0)->exact);
}

TEST(SavePolicy, ContinuedInsideACharacterMovesBackOrWaitsForTheNextToken) {
  const KeyText text = EndingInsideCharacter(3000);
  EXPECT_EQ(ContinuedSavePoint({}, kCut, text, 3000, 2048, 0)->at_tokens, 2999u);
  EXPECT_EQ(ContinuedSavePoint({}, kNoCut, text, 3000, 2048, 0), std::nullopt);
  EXPECT_EQ(ContinuedSavePoint({}, kNoCut, text, 2999, 2048, 0)->at_tokens, 2999u);
}

TEST(SavePolicy, FinishGoesUpToTheLastRunTokenThatTheClientSaw) {
  const KeyText text = Letters(1000);
  EXPECT_EQ(FinishSavePoint({}, kCut, text, 900, 999).at_tokens, 900u);
  EXPECT_EQ(FinishSavePoint({}, kCut, text, 1000, 999).at_tokens, 999u);
  EXPECT_EQ(FinishSavePoint({}, kNoCut, text, 1000, 999).at_tokens, 999u);
  EXPECT_EQ(FinishSavePoint({}, kNoCut, text, 900, 999).skipped, "cannot_cut");
  EXPECT_EQ(FinishSavePoint({}, kCut, text, 511, 999).skipped, "too_short");
  EXPECT_EQ(FinishSavePoint({}, kCut, text, 512, 999).at_tokens, 512u);
}

TEST(SavePolicy, ASlabIsAtLeastAsLargeAsItsStateIdsAndText) {
  const HopStateBytes state{.per_token = 3072, .fixed = 100};
  const uint64_t bytes = SlabBytesMax(state, {0, 4}, 2000, 9000, 576, {});
  const uint64_t content = 2000 * 3072 + 100 + 2000 * 4 + 9000 + 576 * 4;
  EXPECT_GE(bytes, content + slab::kTrailerBytes);
  EXPECT_LE(bytes, content + (64u << 10));
}

}  // namespace
}  // namespace kvmesh::router
