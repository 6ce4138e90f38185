// Packing: nothing is lost, nothing is added, and what cannot be packed is refused by name.
#include "services/shard/engine/packed_matrix.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/kernels/weight_testing.h"

namespace kvmesh::shard {
namespace {

using model::WeightType;
using ::testing::HasSubstr;

const Numerics kNumerics = {.id = "fma32", .set = InstructionSet::kAvx2};

PackedMatrix Packed(ComputePool& pool, const model::Tensor& tensor, uint32_t rope_head_dim = 0) {
  WeightArena arena;
  auto packed = PackedMatrix::Pack(pool, arena, tensor, rope_head_dim, kNumerics);
  EXPECT_TRUE(packed.ok()) << packed.status();
  return *std::move(packed);
}

PackedMatrix Packed(const model::Tensor& tensor, uint32_t rope_head_dim = 0) {
  ComputePool pool(1, [] {});
  return Packed(pool, tensor, rope_head_dim);
}

class PackedMatrixOfType : public ::testing::TestWithParam<WeightType> {};

// NaN matches NaN; else bit by bit.
void ExpectSame(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(float)), 0)
        << "element " << i << ": " << got[i] << ", not " << want[i];
  }
}

TEST_P(PackedMatrixOfType, RowsWidenToTheBitsOfTheModel) {
  ComputePool pool(2, [] {});
  for (const size_t rows : {1u, 31u, 32u, 33u, 70u}) {
    const TestWeights weights = TestWeights::AnyBytes(GetParam(), rows, 512, 1);
    const PackedMatrix packed = Packed(pool, weights.tensor());
    std::vector<float> got(512);
    for (size_t row = 0; row < rows; ++row) {
      packed.WidenRow(row, got.data());
      ExpectSame(got, weights.WidenedRow(row));
    }
  }
}

TEST_P(PackedMatrixOfType, WholePanelsHaveTheBytesOfTheirRows) {
  const TestWeights weights(GetParam(), 64, 512, 2);
  EXPECT_EQ(Packed(weights.tensor()).bytes(), weights.tensor().data.size());
  const TestWeights more(GetParam(), 65, 512, 2);
  EXPECT_EQ(Packed(more.tensor()).bytes(), weights.tensor().data.size() * 3 / 2);
}

TEST_P(PackedMatrixOfType, ThreadsDoNotChangeAByte) {
  const TestWeights weights(GetParam(), 200, 256, 3);
  ComputePool several(5, [] {});
  const PackedMatrix a = Packed(weights.tensor());
  const PackedMatrix b = Packed(several, weights.tensor());
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(std::memcmp(a.packed(), b.packed(), a.bytes()), 0);
}

TEST_P(PackedMatrixOfType, InterleavedHeadsComeOutInHalfLayout) {
  TestWeights weights(GetParam(), 8, 256, 4);  // two heads of four rows
  weights.tensor().rope_interleaved = true;
  const PackedMatrix packed = Packed(weights.tensor(), 4);
  const PackedMatrix as_stored = Packed(weights.tensor(), 0);
  const size_t stored[] = {0, 2, 1, 3, 4, 6, 5, 7};
  std::vector<float> got(256);
  for (size_t row = 0; row < 8; ++row) {
    packed.WidenRow(row, got.data());
    ExpectSame(got, weights.WidenedRow(stored[row]));
    as_stored.WidenRow(row, got.data());
    ExpectSame(got, weights.WidenedRow(row));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, PackedMatrixOfType, ::testing::ValuesIn(AllWeightTypes()),
                         [](const auto& info) { return NameOfType(info.param); });

TEST(PackedMatrix, TheLastColumnOfOddWidthsIsKept) {
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16}) {
    const TestWeights weights(type, 3, 17, 5);
    const PackedMatrix packed = Packed(weights.tensor());
    std::vector<float> got(17);
    packed.WidenRow(2, got.data());
    ExpectSame(got, weights.WidenedRow(2));
  }
}

TEST(PackedMatrix, ACopySharesTheWeights) {
  const TestWeights weights(WeightType::kQ8_0, 4, 64, 6);
  PackedMatrix first = Packed(weights.tensor());
  const PackedMatrix second = first;
  EXPECT_EQ(first.packed(), second.packed());
  first = PackedMatrix();
  std::vector<float> got(64);
  second.WidenRow(3, got.data());
  ExpectSame(got, weights.WidenedRow(3));
}

// What Pack says of a tensor that is changed by `change`.
template <typename Change>
std::string Refusal(uint32_t rope_head_dim, const Change& change) {
  TestWeights weights(WeightType::kQ4_0, 8, 64, 7);
  change(weights.tensor());
  ComputePool pool(1, [] {});
  WeightArena arena;
  const auto packed = PackedMatrix::Pack(pool, arena, weights.tensor(), rope_head_dim, kNumerics);
  EXPECT_EQ(packed.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(packed.status().message());
}

TEST(PackedMatrix, WhatIsNoMatrixIsRefusedByName) {
  EXPECT_EQ(Refusal(0,
                    [](auto& t) {
                      t.shape = {8, 8, 8};
                    }),
            "tensor test.weight: 3 dimensions, a matrix has 2");
  EXPECT_EQ(Refusal(0, [](auto& t) { t.shape = {0, 64}; }), "tensor test.weight: it is 0 by 64");
  EXPECT_EQ(Refusal(0, [](auto& t) { t.shape = {8, 0}; }), "tensor test.weight: it is 8 by 0");
  EXPECT_THAT(Refusal(0, [](auto& t) { t.shape = {8, 63}; }), HasSubstr("whole blocks of 32"));
}

TEST(PackedMatrix, BytesThatAreNotTheRowsAreRefused) {
  EXPECT_THAT(Refusal(0,
                      [](auto& t) {
                        t.shape = {7, 64};
                      }),
              HasSubstr("288 bytes are not 7 rows"));
  EXPECT_THAT(Refusal(0,
                      [](auto& t) {
                        t.shape = {9, 64};
                      }),
              HasSubstr("288 bytes are not 9 rows"));
  EXPECT_THAT(Refusal(0, [](auto& t) { t.data.remove_suffix(1); }),
              HasSubstr("287 bytes are not 8 rows"));
}

TEST(PackedMatrix, RowsThatAreNoWholeHeadsAreRefused) {
  const auto interleave = [](auto& t) { t.rope_interleaved = true; };
  EXPECT_THAT(Refusal(6, interleave), HasSubstr("8 rows are not whole heads of 6"));
  EXPECT_THAT(Refusal(1, interleave), HasSubstr("8 rows are not whole heads of 1"));
}

TEST(WeightArena, BlocksBeginAtCacheLinesAndOutliveTheArena) {
  std::vector<std::shared_ptr<uint8_t>> blocks;
  {
    WeightArena arena;
    for (const size_t bytes : {size_t{1}, size_t{100}, size_t{70} << 20, size_t{64}}) {
      blocks.push_back(*arena.Allocate(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().get()) % WeightArena::kAlignment, 0u);
      blocks.back().get()[0] = static_cast<uint8_t>(blocks.size());
      blocks.back().get()[bytes - 1] = static_cast<uint8_t>(blocks.size());
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(blocks[i].get()[0], i + 1);
  EXPECT_EQ(blocks[2].get()[(size_t{70} << 20) - 1], 3);
}

TEST(WeightArena, AnEarlierCopyHandsOutAgain) {
  WeightArena arena;
  (void)arena.Allocate(100);
  const WeightArena before = arena;
  const uint8_t* first = arena.Allocate(200)->get();
  EXPECT_NE(arena.Allocate(200)->get(), first);
  arena = before;
  EXPECT_EQ(arena.Allocate(200)->get(), first);
}

TEST(WeightArena, MoreThanTheAddressSpaceIsRefused) {
  WeightArena arena;
  EXPECT_EQ(arena.Allocate(SIZE_MAX).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(arena.Allocate(size_t{1} << 60).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(arena.Allocate(1).ok());
}

}  // namespace
}  // namespace kvmesh::shard
