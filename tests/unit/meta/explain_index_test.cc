// What explanations ask of the index.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "services/meta/index/read_index.h"
#include "tests/testing/index_rows.h"

namespace kvmesh::meta {
namespace {

using testing::kIndexNamespace;
using testing::MakeRow;
using testing::RowText;

class ExplainIndexTest : public ::testing::Test {
 protected:
  ExplainIndexTest() {
    index_.Apply(NamespaceOpened{.id = NamespaceId{0}, .key_namespace = kIndexNamespace});
    index_.Apply(StoreOpened{.address = "a:1"});
    index_.Apply(StoreReadable{.readable = true});
  }
  void Open(uint32_t row, const std::string& text, const std::vector<uint32_t>& cuts = {}) {
    index_.Apply(MakeRow(RowId{row}, kIndexNamespace, text, cuts));
  }
  void Close(uint32_t row, GoneCause cause, absl::Duration at) {
    index_.Apply(RowClosed{.row = RowId{row}, .cause = cause, .at = at});
  }
  ReadIndex::Neighbours Nearest(const std::string& prompt, size_t count_max) const {
    const LookupQuery query(kIndexNamespace, prompt);
    PromptPath path(query);
    return index_.Nearest(kIndexNamespace, path, count_max);
  }
  std::optional<GoneRow> Gone(const std::string& prompt, uint64_t bytes_min = 0) const {
    const LookupQuery query(kIndexNamespace, prompt);
    PromptPath path(query);
    return index_.gone().Longest(path, bytes_min);
  }

  ReadIndex index_;
};

TEST_F(ExplainIndexTest, NeighboursAreOrderedByWhatTheySurelyShare) {
  const std::string text = RowText(1, 5000);
  Open(1, text.substr(0, 2100) + RowText(9, 500), {2090});
  Open(2, text.substr(0, 4200) + RowText(9, 100), {4190});
  Open(3, text.substr(0, 4500), {3000});
  Open(4, RowText(7, 3000), {2000});
  std::string prompt = text;
  prompt[4150] ^= 1;
  const auto nearest = Nearest(prompt, 8);
  EXPECT_EQ(nearest.rows_seen, 4U);
  EXPECT_EQ(nearest.left_out_bytes_max, 0U);
  ASSERT_EQ(nearest.rows.size(), 4U);
  EXPECT_THAT((std::vector{nearest.rows[0].row, nearest.rows[1].row}),
              ::testing::UnorderedElementsAre(RowId{2}, RowId{3}));
  EXPECT_EQ(nearest.rows[2].row, RowId{1});
  EXPECT_EQ(nearest.rows[2].common_bytes_min, 2090U);
  EXPECT_EQ(nearest.rows[2].common_bytes_max, 2599U);
  EXPECT_EQ(nearest.rows[3].row, RowId{4});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(nearest.rows[i].common_bytes_min, 4096U);
    EXPECT_EQ(nearest.rows[i].common_bytes_max, nearest.rows[i].row == RowId{2} ? 4189U : 4499U);
  }
}

TEST_F(ExplainIndexTest, OfRowsThatShareTheNextCutPointOneStandsForAll) {
  const std::string system = RowText(1, 3000);
  for (uint32_t row = 0; row < 50; ++row) Open(row, system + RowText(100 + row, 700), {2500});
  index_.Apply(RowUsed{.row = RowId{17}, .last_used = absl::Seconds(9)});
  const auto nearest = Nearest(system.substr(0, 2200) + "#", 2);
  EXPECT_EQ(nearest.rows_seen, 50U);
  ASSERT_EQ(nearest.rows.size(), 1U);
  EXPECT_EQ(nearest.rows[0].row, RowId{17});
  EXPECT_EQ(nearest.left_out_bytes_max, 0U);
}

TEST_F(ExplainIndexTest, WhatIsLeftOutSaysHowMuchItMayShare) {
  for (uint32_t row = 0; row < 9; ++row) Open(row, RowText(100 + row, 1000 + row), {});
  const std::string text = RowText(1, 5000);
  Open(9, text, {2048});
  const auto nearest = Nearest(text.substr(0, 4000), 3);
  ASSERT_EQ(nearest.rows.size(), 3U);
  EXPECT_EQ(nearest.rows[0].row, RowId{9});
  EXPECT_EQ(nearest.rows[0].common_bytes_max, 4000U);
  // Two of nine short ones are among the three.
  EXPECT_GE(nearest.left_out_bytes_max, 1005U);
  EXPECT_LE(nearest.left_out_bytes_max, 1007U);
}

TEST_F(ExplainIndexTest, RowsThatThePromptBeginsWithAndThoseOfOtherNamespacesAreNoNeighbours) {
  const std::string text = RowText(1, 3000);
  Open(1, text.substr(0, 2000), {1500});
  slab::KeyNamespace other = kIndexNamespace;
  other.quant = "f16/f16";
  index_.Apply(NamespaceOpened{.id = NamespaceId{1}, .key_namespace = other});
  RowOpened row = MakeRow(RowId{2}, other, text + "x", {1500});
  row.key_namespace = NamespaceId{1};
  index_.Apply(row);
  const auto nearest = Nearest(text, 8);
  EXPECT_EQ(nearest.rows_seen, 1U);
  EXPECT_TRUE(nearest.rows.empty());
  EXPECT_TRUE(Nearest("", 8).rows.size() == 1U);
}

TEST_F(ExplainIndexTest, ARowThatWentIsFoundByAnyOfItsCutPoints) {
  const std::string text = RowText(1, 5000);
  Open(1, text, {2048, 3000});
  Open(2, text.substr(0, 2500));
  Close(1, GoneCause::kEvicted, absl::Seconds(10));
  Close(2, GoneCause::kOperator, absl::Seconds(20));
  const auto whole = Gone(text + "more");
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->cut_text_bytes, 5000U);
  const auto inner = Gone(text.substr(0, 4000) + "#");
  ASSERT_TRUE(inner.has_value());
  EXPECT_EQ(inner->key, slab::ContentKey(kIndexNamespace, text));
  EXPECT_EQ(inner->text_bytes, 5000U);
  EXPECT_EQ(inner->cut_text_bytes, 3000U);
  EXPECT_EQ(inner->cut_token_count, 750U);
  EXPECT_EQ(inner->cause, GoneCause::kEvicted);
  EXPECT_EQ(inner->at, absl::Seconds(10));
  EXPECT_EQ(Gone(text.substr(0, 2999))->cause, GoneCause::kOperator);
  EXPECT_FALSE(Gone(text.substr(0, 2999), 2500).has_value());
  EXPECT_FALSE(Gone(text.substr(0, 2047)).has_value());
  std::string other = text;
  other[0] ^= 1;
  EXPECT_FALSE(Gone(other).has_value());
}

TEST_F(ExplainIndexTest, OfRowsThatWentForOneTextTheLastIsNamed) {
  const std::string text = RowText(1, 2000);
  for (const int64_t second : {10, 20}) {
    Open(1, text);
    Close(1, second == 10 ? GoneCause::kSlabBad : GoneCause::kSlabLost, absl::Seconds(second));
  }
  EXPECT_EQ(Gone(text)->cause, GoneCause::kSlabLost);
  EXPECT_EQ(Gone(text)->at, absl::Seconds(20));
}

TEST(GoneRows, RemembersTheNewestCutPoints) {
  GoneRows gone(3);
  const std::string text = RowText(1, 2000);
  const auto point_at = [&](uint32_t bytes) {
    const std::string cut = text.substr(0, bytes);
    return FiledCutPoint{.key = slab::ContentKey(kIndexNamespace, cut),
                         .block_hash = slab::BlockHash(kIndexNamespace, cut),
                         .tail_hash = slab::TailHash(cut),
                         .text_bytes = bytes,
                         .token_count = bytes / 4};
  };
  const std::vector<FiledCutPoint> first = {point_at(2000), point_at(1500)};
  const std::vector<FiledCutPoint> second = {point_at(1200), point_at(1000)};
  gone.Add(first[0], first, GoneCause::kEvicted, absl::Seconds(1));
  gone.Add(second[0], second, GoneCause::kOperator, absl::Seconds(2));
  const LookupQuery query(kIndexNamespace, text);
  PromptPath path(query);
  // The oldest of four is forgotten: the longest.
  const auto longest = gone.Longest(path, 0);
  ASSERT_TRUE(longest.has_value());
  EXPECT_EQ(longest->cut_text_bytes, 1500U);
  EXPECT_EQ(longest->text_bytes, 2000U);
}

TEST_F(ExplainIndexTest, ARowsOwnLongestCutPointIsFoundWhileLongerRowsExist) {
  const std::string text = RowText(1, 4000);
  Open(1, text.substr(0, 3000), {1000, 2000});
  Open(2, text);
  const LookupQuery query(kIndexNamespace, absl::string_view(text).substr(0, 2500));
  PromptPath path(query);
  const auto hit = index_.LookupRow(RowId{1}, path);
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->text_bytes, 2000U);
  EXPECT_EQ(hit->row_text_bytes, 3000U);
  EXPECT_FALSE(index_.LookupRow(RowId{2}, path).has_value());
  EXPECT_FALSE(index_.LookupRow(RowId{3}, path).has_value());
  index_.Apply(StoreReadable{.readable = false});
  EXPECT_FALSE(index_.LookupRow(RowId{1}, path).has_value());
}

// Entries are used again while they are walked; under ThreadSanitizer this also shows the locks.
TEST_F(ExplainIndexTest, NeighboursAreRightWhileAWriterChurns) {
  const std::string text = RowText(1, 3000);
  Open(1000, text, {1024, 2048});
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint32_t i = 0; !stop.load(); ++i) {
      const uint32_t row = i % 64;
      Open(row, text.substr(0, 1500) + RowText(i, 300), {1024, 1400});
      Close((i + 32) % 64, GoneCause::kEvicted, absl::Seconds(i));
    }
  });
  int wrong = 0;
  for (int i = 0; i < 300; ++i) {
    const auto nearest = Nearest(text.substr(0, 2900) + "#", 8);
    // The row that stays shares 2,900 bytes; no other shares more than 1,500 and a few.
    const bool right = !nearest.rows.empty() && nearest.rows[0].row == RowId{1000} &&
                       nearest.rows[0].common_bytes_min == 2048 &&
                       nearest.rows[0].common_bytes_max >= 2900;
    wrong += right ? 0 : 1;
    Gone(text);
  }
  stop = true;
  writer.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace kvmesh::meta
