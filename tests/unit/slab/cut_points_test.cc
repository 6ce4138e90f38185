#include "common/slab/cut_points.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/slab/content_key.h"

namespace kvmesh::slab {
namespace {

const KeyNamespace kNamespace{
    .model_fp = std::string(32, 'm'), .quant = "q", .ctx_params = std::string(32, 'c')};

std::vector<uint32_t> OneByteTokens(uint32_t count) {
  std::vector<uint32_t> ends;
  for (uint32_t i = 1; i <= count; ++i) ends.push_back(i);
  return ends;
}

std::vector<uint32_t> TokenCounts(const std::vector<CutPoint>& points) {
  std::vector<uint32_t> counts;
  for (const CutPoint& point : points) counts.push_back(point.token_count);
  return counts;
}

TEST(CutPoints, AreTheMultiplesFromTheMinimumOnAndNeverTheEnd) {
  const std::string text(64, 'a');
  const auto at = [&](uint32_t min_tokens) {
    return TokenCounts(ChooseCutPoints(kNamespace, text, OneByteTokens(64), min_tokens, 16));
  };
  EXPECT_EQ(at(16), (std::vector<uint32_t>{16, 32, 48}));
  EXPECT_EQ(at(17), (std::vector<uint32_t>{32, 48}));
  EXPECT_EQ(at(0), (std::vector<uint32_t>{16, 32, 48}));
  EXPECT_EQ(at(64), std::vector<uint32_t>{});
}

TEST(CutPoints, MoveBackOutOfACharacter) {
  std::string text(64, 'a');
  text.replace(14, 4, "\xF0\x9F\x99\x82");  // bytes 14..17: token 16 ends inside it
  EXPECT_EQ(TokenCounts(ChooseCutPoints(kNamespace, text, OneByteTokens(64), 16, 16)),
            (std::vector<uint32_t>{14, 32, 48}));
}

TEST(CutPoints, HaveTheKeyAndBlockHashOfTheirPrefix) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>('a' + i % 26);
  const auto points = ChooseCutPoints(kNamespace, text, OneByteTokens(5000), 512, 256);
  ASSERT_EQ(points.size(), 18U);
  for (const CutPoint& point : points) {
    const absl::string_view prefix = absl::string_view(text).substr(0, point.text_bytes);
    EXPECT_EQ(point.key, ContentKey(kNamespace, prefix));
    EXPECT_EQ(point.block_hash, BlockHash(kNamespace, prefix));
    EXPECT_EQ(point.tail_hash, TailHash(prefix));
  }
}

TEST(CutPoints, AreNoMoreThanASlabMayHave) {
  constexpr uint32_t kTokens = kCutPointsMax + 100;
  const std::string text(kTokens, 'a');
  SlabMeta meta;
  meta.key_namespace = kNamespace;
  meta.text = text;
  meta.header.token_count = kTokens;
  meta.cut_points = ChooseCutPoints(kNamespace, text, OneByteTokens(kTokens), 1, 1);
  ASSERT_EQ(meta.cut_points.size(), kCutPointsMax);
  EXPECT_EQ(meta.cut_points.back().token_count, kCutPointsMax);
  EXPECT_TRUE(CheckCutPoints(meta).ok());
  meta.cut_points.push_back({.token_count = kTokens - 1, .text_bytes = kTokens - 1});
  FillKeys(kNamespace, text, &meta.cut_points);
  EXPECT_EQ(CheckCutPoints(meta).code(), absl::StatusCode::kDataLoss);
}

TEST(CutPoints, TheTailHashIsFnv1aOfWhatTheBlockHashDoesNotCover) {
  EXPECT_EQ(TailHash(""), 0x811C9DC5U);
  EXPECT_EQ(TailHash("a"), 0xE40C292CU);
  EXPECT_EQ(TailHash("foobar"), 0xBF9CF968U);
  const std::string block(1024, 'x');
  EXPECT_EQ(TailHash(block), TailHash(""));
  EXPECT_EQ(TailHash(block + block + "foobar"), TailHash("foobar"));
  EXPECT_NE(TailHash(block.substr(1)), TailHash(""));
}

TEST(CutPoints, OnlyAPossibleBeginningOfACharacterIsInsideOne) {
  EXPECT_FALSE(EndsInsideCharacter(""));
  EXPECT_FALSE(EndsInsideCharacter("a"));
  EXPECT_FALSE(EndsInsideCharacter("\xC3\xA9"));
  EXPECT_TRUE(EndsInsideCharacter("\xC3"));
  EXPECT_TRUE(EndsInsideCharacter("a\xE2\x82"));
  EXPECT_FALSE(EndsInsideCharacter("a\xE2\x82\xAC"));
  EXPECT_TRUE(EndsInsideCharacter("\xF0\x9F\x99"));
  EXPECT_FALSE(EndsInsideCharacter("\x80\x80\x80\x80"));  // belongs to no beginning
  EXPECT_FALSE(EndsInsideCharacter("\xED\xA0"));          // half of a surrogate
  EXPECT_FALSE(EndsInsideCharacter("\xE0\x80"));          // overlong
  EXPECT_FALSE(EndsInsideCharacter("\xC0"));
  EXPECT_FALSE(EndsInsideCharacter("\xFF"));
}

TEST(ContentKey, EscapesKeepControlTokensAndTextApart) {
  std::string control;
  AppendControlToken(0x01020304, &control);
  EXPECT_EQ(control, std::string("\xFF\x01\x04\x03\x02\x01", 6));
  std::string piece;
  AppendPiece(control, &piece);
  EXPECT_EQ(piece, std::string("\xFF\x00\x01\x04\x03\x02\x01", 7));
}

}  // namespace
}  // namespace kvmesh::slab
