// Blocks of keys and values: growth, layout, canonical rows, snapshots.
#include "services/shard/engine/key_value_state.h"

#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvmesh::shard {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBlock = KeyValueState::kBlockTokens;
constexpr KeyValueLayout kLayouts[] = {{.kv_heads = 2, .head_dim = 12, .dtype = KvDtype::kF16},
                                       {.kv_heads = 1, .head_dim = 16, .dtype = KvDtype::kBF16},
                                       {.kv_heads = 3, .head_dim = 5, .dtype = KvDtype::kF32}};

KeyValueState MakeState(const KeyValueLayout& layout) {
  return {layout, BlockPool::Make(layout.block_bytes())};
}

// Bytes that differ from token to token and from place to place.
std::vector<uint8_t> Rows(size_t begin, size_t end, size_t row_bytes, uint8_t salt) {
  std::vector<uint8_t> rows((end - begin) * row_bytes);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<uint8_t>((begin * row_bytes + i) * 31 + salt);
  }
  return rows;
}

void Append(KeyValueState& state, size_t count) {
  const size_t begin = state.tokens();
  const auto status = state.AppendRows(Rows(begin, begin + count, state.row_bytes(), 1),
                                       Rows(begin, begin + count, state.row_bytes(), 2));
  ASSERT_TRUE(status.ok()) << status;
}

void ExpectHolds(const LayerState& state, size_t begin, size_t end) {
  std::vector<uint8_t> keys((end - begin) * state.row_bytes());
  std::vector<uint8_t> values(keys.size());
  const auto status = state.CopyRows(begin, end, absl::MakeSpan(keys), absl::MakeSpan(values));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(keys, Rows(begin, end, state.row_bytes(), 1));
  EXPECT_EQ(values, Rows(begin, end, state.row_bytes(), 2));
}

TEST(KeyValueState, GrowsByWholeBlocks) {
  KeyValueState state = MakeState({.kv_heads = 2, .head_dim = 16, .dtype = KvDtype::kF16});
  const uint64_t block_bytes = 2 * 2 * 16 * kBlock * sizeof(uint16_t);
  EXPECT_EQ(state.bytes(), 0u);
  state.Reserve(1);
  EXPECT_EQ(state.bytes(), block_bytes);
  state.Reserve(kBlock);
  EXPECT_EQ(state.bytes(), block_bytes);
  state.Reserve(kBlock + 1);
  EXPECT_EQ(state.bytes(), 2 * block_bytes);
  state.Reserve(1);
  EXPECT_EQ(state.bytes(), 2 * block_bytes);
}

TEST(KeyValueState, GrowingMovesNoBlock) {
  KeyValueState state = MakeState(kLayouts[0]);
  state.Reserve(kBlock);
  const uint8_t* first = state.blocks()[0];
  state.Reserve(50 * kBlock);
  EXPECT_EQ(state.blocks()[0], first);
}

TEST(KeyValueState, KeysLieByElementAndValuesByTokenInWholeVectors) {
  const KeyValueLayout layout{.kv_heads = 2, .head_dim = 3, .dtype = KvDtype::kF32};
  KeyValueState state = MakeState(layout);
  state.Reserve(kBlock + 2);
  const float key[] = {1, 2, 3, 4, 5, 6};
  const float value[] = {7, 8, 9, 10, 11, 12};
  state.Put(kBlock + 1, reinterpret_cast<const uint8_t*>(key),
            reinterpret_cast<const uint8_t*>(value));
  const uint8_t* block = state.blocks()[1];
  for (size_t head = 0; head < 2; ++head) {
    const auto* keys = reinterpret_cast<const float*>(block + layout.key_offset(head));
    const auto* values = reinterpret_cast<const float*>(block + layout.value_offset(head));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(keys[i * kBlock + 1], key[head * 3 + i]);
      EXPECT_EQ(values[1 * ValueStride(3) + i], value[head * 3 + i]);
    }
    EXPECT_EQ(values[1 * ValueStride(3) + 3], 0) << "the padding is zero";
  }
}

TEST(KeyValueState, CanonicalRowsComeBackAsTheyWentIn) {
  for (const KeyValueLayout& layout : kLayouts) {
    KeyValueState state = MakeState(layout);
    for (const size_t count : {1u, 62u, 1u, 1u, 130u}) Append(state, count);
    EXPECT_EQ(state.tokens(), 195u);
    ExpectHolds(state, 0, 195);
    ExpectHolds(state, 63, 65);
    ExpectHolds(state, 64, 64);
  }
}

TEST(KeyValueState, RowsThatAreNotHeldOrHaveNoRoomAreRefused) {
  KeyValueState state = MakeState(kLayouts[0]);
  Append(state, 3);
  std::vector<uint8_t> keys(4 * state.row_bytes());
  std::vector<uint8_t> values(keys.size());
  const auto room = absl::MakeSpan(keys);
  const auto status = state.CopyRows(0, 4, room, absl::MakeSpan(values));
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("3 are held"));
  EXPECT_EQ(state.CopyRows(2, 1, room.first(0), room.first(0)).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(state.CopyRows(0, 3, room, absl::MakeSpan(values)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(KeyValueState, HalfARowIsNotAppended) {
  KeyValueState state = MakeState(kLayouts[0]);
  const std::vector<uint8_t> rows(2 * state.row_bytes());
  const auto all = absl::MakeConstSpan(rows);
  EXPECT_EQ(state.AppendRows(all.first(rows.size() - 1), all.first(rows.size() - 1)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(state.AppendRows(all, all.first(state.row_bytes())).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(state.tokens(), 0u);
}

TEST(KeyValueState, ASnapshotSharesFullBlocksAndCopiesTheLastOne) {
  for (const KeyValueLayout& layout : kLayouts) {
    KeyValueState state = MakeState(layout);
    Append(state, 2 * kBlock + 5);
    for (const size_t cut : {size_t{0}, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock + 5}) {
      const auto snapshot = state.Snapshot(cut);
      ASSERT_TRUE(snapshot.ok()) << snapshot.status();
      const auto& cut_state = static_cast<const KeyValueState&>(**snapshot);
      EXPECT_EQ(cut_state.tokens(), cut);
      ExpectHolds(cut_state, 0, cut);
      for (size_t block = 0; block * kBlock < cut; ++block) {
        const bool shared = cut_state.blocks()[block] == state.blocks()[block];
        EXPECT_EQ(shared, (block + 1) * kBlock <= cut) << "block " << block << " of " << cut;
      }
    }
    EXPECT_EQ(state.Snapshot(2 * kBlock + 6).status().code(), absl::StatusCode::kOutOfRange);
  }
}

TEST(KeyValueState, ASnapshotStaysAsItIsWhileTheSessionGoesOn) {
  KeyValueState state = MakeState(kLayouts[0]);
  Append(state, kBlock + 3);
  const auto snapshot = state.Snapshot(kBlock + 3);
  ASSERT_TRUE(snapshot.ok());
  // Under TSan this also shows that reading it needs no lock.
  std::thread reader([&] {
    for (int i = 0; i < 100; ++i) ExpectHolds(**snapshot, 0, kBlock + 3);
  });
  for (int i = 0; i < 100; ++i) Append(state, 7);
  reader.join();
  ExpectHolds(state, 0, state.tokens());
}

TEST(KeyValueState, ASnapshotGoesOnByItself) {
  KeyValueState state = MakeState(kLayouts[0]);
  Append(state, kBlock + 3);
  const auto snapshot = state.Snapshot(kBlock + 1);
  ASSERT_TRUE(snapshot.ok());
  Append(static_cast<KeyValueState&>(**snapshot), 2 * kBlock);
  Append(state, 1);
  ExpectHolds(**snapshot, 0, 3 * kBlock + 1);
  ExpectHolds(state, 0, kBlock + 4);
}

TEST(KvDtype, EveryTypeIsFoundByItsNameAndNoOther) {
  for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kBF16, KvDtype::kF32}) {
    EXPECT_EQ(KvDtypeNamed(NameOf(dtype)).value(), dtype);
  }
  for (const char* name : {"", "F16", "f8", "f16 "}) {
    EXPECT_EQ(KvDtypeNamed(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

}  // namespace
}  // namespace kvmesh::shard
