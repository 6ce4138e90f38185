#include "tests/unit/engine/kernels/weight_testing.h"

#include <cstring>
#include <random>

#include "absl/types/span.h"

namespace kvmesh::shard {

using model::WeightType;

namespace {

// Where a stored block has half precision numbers.
std::vector<size_t> HalvesOf(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kBF16:
      return {};
    case WeightType::kF16:
    case WeightType::kQ8_0:
    case WeightType::kQ4_0:
    case WeightType::kQ5_0:
    case WeightType::kIQ4_NL:
    case WeightType::kIQ4_XS:
      return {0};
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    case WeightType::kQ2_K:
      return {80, 82};
    case WeightType::kQ3_K:
      return {108};
    case WeightType::kQ6_K:
      return {208};
  }
  return {};
}

}  // namespace

std::vector<WeightType> AllWeightTypes() {
  std::vector<WeightType> types;
  types.reserve(model::kWeightTypeCount);
  for (size_t i = 0; i < model::kWeightTypeCount; ++i) types.push_back(static_cast<WeightType>(i));
  return types;
}

std::string NameOfType(WeightType type) {
  return std::string(model::InfoOf(type).name);
}

TestWeights::TestWeights(WeightType type, size_t rows, size_t columns, uint32_t seed) {
  Fill(type, rows, columns, seed);
  TameHalves(seed + 1);
}

TestWeights TestWeights::AnyBytes(WeightType type, size_t rows, size_t columns, uint32_t seed) {
  TestWeights weights;
  weights.Fill(type, rows, columns, seed);
  return weights;
}

void TestWeights::Fill(WeightType type, size_t rows, size_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  const model::WeightTypeInfo& info = model::InfoOf(type);
  bytes_.resize(rows * (columns / info.block_size * info.block_bytes));
  for (uint8_t& byte : bytes_) byte = static_cast<uint8_t>(random());
  tensor_ = {.name = "test.weight", .type = type, .shape = {rows, columns}, .data = bytes_};
}

void TestWeights::TameHalves(uint32_t seed) {
  std::mt19937 random(seed);
  const model::WeightTypeInfo& info = model::InfoOf(tensor_.type);
  for (size_t block = 0; block < bytes_.size(); block += info.block_bytes) {
    uint8_t* start = bytes_.data() + block;
    for (const size_t offset : HalvesOf(tensor_.type)) {
      // Sign and fraction as they come; exponent from 2^-9 to 2^-6.
      const auto half = static_cast<uint16_t>((random() & 0x83FF) | (6 + random() % 4) << 10);
      std::memcpy(start + offset, &half, sizeof(half));
    }
    if (tensor_.type == WeightType::kF32) {
      const float value = std::uniform_real_distribution<float>(-1, 1)(random);
      std::memcpy(start, &value, sizeof(value));
    }
    if (tensor_.type == WeightType::kBF16) {
      const auto value = static_cast<uint16_t>((random() & 0x807F) | (118 + random() % 8) << 7);
      std::memcpy(start, &value, sizeof(value));
    }
  }
}

std::vector<float> TestWeights::WidenedRow(size_t row) const {
  std::vector<float> values(columns());
  model::Dequantize(tensor_.type, {stored_row(row), tensor_.row_bytes()}, absl::MakeSpan(values));
  return values;
}

}  // namespace kvmesh::shard
