#include "services/meta/index/read_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>

#include "tests/testing/index_rows.h"

namespace kvmesh::meta {
namespace {

using testing::kIndexNamespace;
using testing::MakeRow;
using testing::RowText;

class ReadIndexTest : public ::testing::Test {
 protected:
  ReadIndexTest() {
    for (const uint16_t slot : {0, 1}) {
      index_.Apply(StoreOpened{.slot = StoreSlot{slot},
                               .address = slot == 0 ? "a:1" : "b:1",
                               .tier = slot == 0 ? Tier::kRam : Tier::kDisk});
      SetReadable(slot, true);
    }
  }

  void SetReadable(uint16_t slot, bool readable) {
    index_.Apply(StoreReadable{.slot = StoreSlot{slot}, .readable = readable});
  }
  void Open(uint32_t row, const std::string& text, std::vector<uint32_t> cuts = {},
            const slab::KeyNamespace& key_namespace = kIndexNamespace) {
    index_.Apply(MakeRow(RowId{row}, key_namespace, text, cuts));
  }
  void Close(uint32_t row) { index_.Apply(RowClosed{.row = RowId{row}}); }
  std::optional<LookupHit> Lookup(absl::string_view text, uint32_t token_count_min = 0) const {
    return index_.Lookup(LookupQuery(kIndexNamespace, text), token_count_min);
  }
  // The row of the longest hit and its length; {-1, 0}: none.
  std::pair<int64_t, size_t> Found(absl::string_view text) const {
    const auto hit = Lookup(text);
    if (!hit) return {-1, 0};
    return {static_cast<int64_t>(hit->row), hit->text_bytes};
  }

  ReadIndex index_;
};

using Pair = std::pair<int64_t, size_t>;

TEST_F(ReadIndexTest, AHitSaysAllThatAReaderNeeds) {
  const std::string text = RowText(1, 5000);
  RowOpened opened = MakeRow(RowId{7}, kIndexNamespace, text, {2000, 4000});
  opened.slabs = {{.layers = {0, 16},
                   .write_id = RandomId<WriteId>(),
                   .slot = StoreSlot{0},
                   .size_bytes = 8192},
                  {.layers = {16, 30}, .slot = StoreSlot{1}, .size_bytes = 1ULL << 40}};
  for (const bool one_write : {true, false}) {
    opened.slabs[1].write_id = one_write ? opened.slabs[0].write_id : RandomId<WriteId>();
    index_.Apply(opened);
    const auto hit = Lookup(text.substr(0, 4500));
    ASSERT_TRUE(hit.has_value());
    EXPECT_EQ(hit->row, RowId{7});
    EXPECT_EQ(hit->text_bytes, 4000U);
    EXPECT_EQ(hit->token_count, opened.cut_points[1].token_count);
    EXPECT_EQ(hit->key, slab::ContentKey(kIndexNamespace, text.substr(0, 4000)));
    EXPECT_EQ(hit->row_key, opened.key);
    EXPECT_EQ(hit->row_text_bytes, 5000U);
    EXPECT_EQ(hit->row_token_count, opened.token_count);
    EXPECT_EQ(hit->tokens_sha256, opened.tokens_sha256);
    ASSERT_EQ(hit->slabs.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(hit->slabs[i].layers, opened.slabs[i].layers);
      EXPECT_EQ(hit->slabs[i].write_id, opened.slabs[i].write_id);
      EXPECT_EQ(hit->slabs[i].slot, opened.slabs[i].slot);
      EXPECT_EQ(hit->slabs[i].size_bytes, opened.slabs[i].size_bytes);
    }
    Close(7);
    EXPECT_FALSE(Lookup(text).has_value());
  }
  EXPECT_EQ(index_.StoreAt(StoreSlot{1}).address, "b:1");
  EXPECT_EQ(index_.StoreAt(StoreSlot{1}).tier, Tier::kDisk);
}

TEST_F(ReadIndexTest, PromptsThatShareAnyNumberOfBlocksHitExactlyWhatTheyHold) {
  const std::string text = RowText(1, 6 * 1024);
  std::vector<uint32_t> cuts;
  for (uint32_t blocks = 1; blocks < 6; ++blocks) {
    for (const uint32_t around : {1023U, 1024U, 1025U})
      cuts.push_back((blocks - 1) * 1024 + around);
  }
  Open(1, text, cuts);
  cuts.push_back(6 * 1024);
  for (size_t bytes = 0; bytes <= text.size();
       bytes += bytes % 1024 > 3 && bytes % 1024 < 1020 ? 97 : 1) {
    const auto above = std::upper_bound(cuts.begin(), cuts.end(), bytes);
    const Pair expected = above == cuts.begin() ? Pair(-1, 0) : Pair(1, *(above - 1));
    EXPECT_EQ(Found(text.substr(0, bytes)), expected) << bytes;
    // The same length of shared text, and another one behind it.
    EXPECT_EQ(Found(text.substr(0, bytes) + std::string(3000, '#')), expected) << bytes;
  }
}

TEST_F(ReadIndexTest, OneByteDecides) {
  const std::string text = RowText(1, 3000);
  Open(1, text);
  for (const size_t at : {0, 1, 1022, 1023, 1024, 1025, 2047, 2048, 2998, 2999}) {
    std::string other = text + "tail";
    other[at] ^= 1;
    EXPECT_EQ(Found(other), Pair(-1, 0)) << at;
  }
  EXPECT_EQ(Found(text.substr(0, 2999)), Pair(-1, 0));
  EXPECT_EQ(Found(text), Pair(1, 3000));
}

TEST_F(ReadIndexTest, NoOtherModelQuantOrTenantIsMetThoughItsTextIsEqual) {
  const std::string text = RowText(1, 2500);
  slab::KeyNamespace model = kIndexNamespace;
  model.model_fp[0] ^= 1;
  slab::KeyNamespace quant = kIndexNamespace;
  quant.quant += "x";
  slab::KeyNamespace tenant = kIndexNamespace;
  tenant.ctx_params[31] ^= 1;
  uint32_t row = 1;
  for (const auto& other : {model, quant, tenant}) {
    Open(row, text, {1000}, other);
    EXPECT_FALSE(Lookup(text).has_value());
    EXPECT_EQ(index_.Lookup(LookupQuery(other, text))->row, RowId{row});
    ++row;
  }
}

TEST_F(ReadIndexTest, TextsMayBeEmptyHugeOrFullOfZeros) {
  EXPECT_FALSE(Lookup("").has_value());
  const std::string huge = RowText(1, 8 << 20);
  EXPECT_FALSE(Lookup(huge).has_value());
  const std::string zeros(2100, '\0');
  Open(1, zeros.substr(0, 2000), {700});
  EXPECT_EQ(Found(zeros), Pair(1, 2000));
  EXPECT_EQ(Found(zeros.substr(0, 1999)), Pair(1, 700));
  EXPECT_EQ(Found(zeros.substr(0, 700) + "\x01"), Pair(1, 700));
  EXPECT_EQ(Found(zeros.substr(0, 699)), Pair(-1, 0));
  Open(2, huge, {4 << 20});
  EXPECT_EQ(Found(huge), Pair(2, 8 << 20));
  EXPECT_EQ(Found(huge.substr(0, (8 << 20) - 1)), Pair(2, 4 << 20));
}

TEST_F(ReadIndexTest, ARowWhoseTextBeginsAnotherServesWhereThatOneDoesNot) {
  const std::string text = RowText(1, 4000);
  Open(1, text.substr(0, 1500));
  Open(2, text.substr(0, 1501));
  Open(3, text);
  EXPECT_EQ(Found(text), Pair(3, 4000));
  EXPECT_EQ(Found(text.substr(0, 3999)), Pair(2, 1501));
  EXPECT_EQ(Found(text.substr(0, 1500) + "?"), Pair(1, 1500));
  Close(3);
  EXPECT_EQ(Found(text), Pair(2, 1501));
  Close(2);
  EXPECT_EQ(Found(text), Pair(1, 1500));
}

TEST_F(ReadIndexTest, AnInnerCutPointIsHitAsLongAsOneOfManyRowsHasIt) {
  constexpr uint32_t kRows = 200;
  const std::string system = RowText(1, 3000);
  for (uint32_t row = 0; row < kRows; ++row) Open(row, system + RowText(100 + row, 1500), {3000});
  std::vector<uint32_t> order(kRows);
  for (uint32_t row = 0; row < kRows; ++row) order[row] = row;
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  for (uint32_t i = 0; i < kRows; ++i) {
    const auto hit = Lookup(system + "something else");
    ASSERT_TRUE(hit.has_value()) << i;
    EXPECT_EQ(hit->text_bytes, 3000U);
    EXPECT_TRUE(std::find(order.begin() + i, order.end(), static_cast<uint32_t>(hit->row)) !=
                order.end());
    Close(order[i]);
  }
  EXPECT_FALSE(Lookup(system + "something else").has_value());
  EXPECT_EQ(index_.cut_points(), 0U);
}

TEST_F(ReadIndexTest, TheRowUsedLastIsOffered) {
  const std::string system = RowText(1, 3000);
  for (uint32_t row = 0; row < 3; ++row) Open(row, system + RowText(row + 2, 900), {3000});
  index_.Apply(RowUsed{.row = RowId{1}, .last_used = absl::Seconds(10)});
  EXPECT_EQ(Found(system), Pair(1, 3000));
  index_.Apply(RowUsed{.row = RowId{0}, .last_used = absl::Seconds(11)});
  EXPECT_EQ(Found(system), Pair(0, 3000));
  Close(0);
  EXPECT_EQ(Found(system), Pair(1, 3000));
}

TEST_F(ReadIndexTest, OfARowOnlyWhatAllItsStoresServeIsOffered) {
  const std::string system = RowText(1, 3000);
  RowOpened on_both = MakeRow(RowId{1}, kIndexNamespace, system + "both", {3000});
  on_both.slabs = {{.layers = {0, 1}, .slot = StoreSlot{0}},
                   {.layers = {1, 2}, .slot = StoreSlot{1}}};
  index_.Apply(on_both);
  Open(2, system + "first", {2000});  // on the first alone
  EXPECT_EQ(Found(system + "both"), Pair(1, 3004));
  SetReadable(1, false);
  EXPECT_EQ(Found(system + "both"), Pair(2, 2000));
  SetReadable(0, false);
  EXPECT_EQ(Found(system + "both"), Pair(-1, 0));
  SetReadable(0, true);
  SetReadable(1, true);
  EXPECT_EQ(Found(system + "both"), Pair(1, 3004));
}

TEST_F(ReadIndexTest, AReadableRowBehindManyThatAreNotIsFoundOnceTheyAreSwept) {
  const std::string system = RowText(1, 3000);
  const auto open_on = [&](uint32_t row, uint16_t slot) {
    RowOpened opened = MakeRow(RowId{row}, kIndexNamespace, system + RowText(row + 2, 40), {3000});
    opened.slabs[0].slot = StoreSlot{slot};
    index_.Apply(opened);
  };
  open_on(0, 0);
  for (uint32_t row = 1; row <= 500; ++row) open_on(row, 1);
  SetReadable(1, false);
  int sweeps = 1;
  while (index_.Sweep(10)) ++sweeps;
  EXPECT_EQ(sweeps, 51);
  EXPECT_EQ(Found(system), Pair(0, 3000));
  // One that is used, and one that is closed, while they are parked.
  index_.Apply(RowUsed{.row = RowId{17}, .last_used = absl::Seconds(5)});
  Close(500);
  SetReadable(1, true);
  while (index_.Sweep(10)) {
  }
  EXPECT_EQ(Found(system), Pair(17, 3000));
  for (uint32_t row = 0; row < 500; ++row) Close(row);
  EXPECT_EQ(Found(system), Pair(-1, 0));
  EXPECT_EQ(index_.cut_points(), 0U);
}

TEST_F(ReadIndexTest, FewerTokensThanAskedForAreNoHit) {
  const std::string text = RowText(1, 3000);
  Open(1, text, {2000});
  const auto hit = Lookup(text.substr(0, 2500));
  ASSERT_TRUE(hit.has_value());
  EXPECT_TRUE(Lookup(text.substr(0, 2500), hit->token_count).has_value());
  EXPECT_FALSE(Lookup(text.substr(0, 2500), hit->token_count + 1).has_value());
}

// Every answer must be a cut point that was filed at some time; what is never closed is always
// found. Under ThreadSanitizer this also shows the locks.
TEST_F(ReadIndexTest, EightReadersMeetOnlyWhatThereIsWhileAWriterChurns) {
  const std::string system = RowText(1, 2500);
  std::vector<std::string> texts;
  for (uint32_t row = 0; row < 64; ++row) {
    texts.push_back(system + RowText(10 + row % 16, 200 + row * 40));
  }
  Open(1000, system);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> longer{0};
  std::vector<std::thread> readers;
  for (uint32_t reader = 0; reader < 8; ++reader) {
    readers.emplace_back([&, reader] {
      std::mt19937 random(reader);
      while (!stop.load()) {
        const std::string& text = texts[random() % texts.size()];
        const auto hit = Lookup(text);
        if (!hit ||
            hit->key != slab::ContentKey(kIndexNamespace, text.substr(0, hit->text_bytes)) ||
            hit->row_text_bytes < hit->text_bytes || hit->slabs.empty()) {
          wrong.fetch_add(1);
        } else if (hit->text_bytes > system.size()) {
          longer.fetch_add(1);
        }
      }
    });
  }
  std::mt19937 random(99);
  std::vector<bool> open(64);
  const auto step = [&](uint32_t row) {
    if (open[row]) {
      Close(row);
    } else {
      Open(row, texts[row], {2500, 2600});
      index_.Apply(RowUsed{.row = RowId{row}, .last_used = absl::Seconds(random() % 9)});
    }
    open[row] = !open[row];
  };
  for (int i = 0; i < 20'000 || (longer.load() == 0 && i < 2'000'000); ++i) {
    step(random() % 64);
    if (i % 500 == 0) SetReadable(1, i % 1000 == 0);
    if (i % 50 == 0) index_.Sweep(16);
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0U);
  EXPECT_GT(longer.load(), 0U);
}

}  // namespace
}  // namespace kvmesh::meta
