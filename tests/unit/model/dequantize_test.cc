// Widening: half precision against arithmetic, and blocks against their definition.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "common/model/weights.h"
#include "tests/unit/model/model_builder.h"

namespace kvmesh::model {
namespace {

std::vector<float> Widen(WeightType type, const std::string& bytes, size_t count) {
  std::vector<float> out(count);
  Dequantize(type, {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
             absl::MakeSpan(out));
  return out;
}

// IEEE 754 half precision, by its definition.
float HalfByDefinition(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  float magnitude = std::ldexp(1024.0f + fraction, exponent - 25);
  if (exponent == 0) magnitude = std::ldexp(static_cast<float>(fraction), -24);
  if (exponent == 31) magnitude = fraction == 0 ? INFINITY : NAN;
  return half & 0x8000 ? -magnitude : magnitude;
}

TEST(Dequantize, AllHalfPrecisionNumbersAreExact) {
  std::string bytes;
  for (uint32_t half = 0; half < 65536; ++half) bytes += Raw(static_cast<uint16_t>(half));
  const std::vector<float> out = Widen(WeightType::kF16, bytes, 65536);
  for (uint32_t half = 0; half < 65536; ++half) {
    const float wanted = HalfByDefinition(static_cast<uint16_t>(half));
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(out[half])) << half;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(out[half]), std::bit_cast<uint32_t>(wanted)) << half;
    }
  }
}

TEST(Dequantize, BrainFloatsAreTheUpperHalfOfASingle) {
  const std::vector<float> out =
      Widen(WeightType::kBF16, Raw<uint16_t>(0x3F80) + Raw<uint16_t>(0xC040), 2);
  EXPECT_EQ(out, (std::vector<float>{1.0f, -3.0f}));
}

TEST(Dequantize, BlocksFollowOneAnotherAndUnalignedBytesServe) {
  const std::string half = Raw<uint16_t>(0x3800);  // 0.5
  std::string bytes = half + std::string(32, '\x02') + half + std::string(32, '\xFE');
  EXPECT_EQ(Widen(WeightType::kQ8_0, bytes, 64)[31], 1.0f);
  EXPECT_EQ(Widen(WeightType::kQ8_0, bytes, 64)[32], -1.0f);
  std::vector<float> out(64);
  bytes.insert(0, 1, 'x');
  Dequantize(WeightType::kQ8_0, {reinterpret_cast<const uint8_t*>(bytes.data()) + 1, 68},
             absl::MakeSpan(out));
  EXPECT_EQ(out[63], -1.0f);
}

TEST(Dequantize, NothingIsWidenedToNothing) {
  EXPECT_TRUE(Widen(WeightType::kQ4_K, "", 0).empty());
}

TEST(DequantizeDeathTest, SizesThatDoNotFitAreTheCallersBug) {
  EXPECT_DEATH(Widen(WeightType::kQ8_0, std::string(33, '\0'), 32), "do not hold");
  EXPECT_DEATH(Widen(WeightType::kQ8_0, std::string(34, '\0'), 16), "do not hold");
}

}  // namespace
}  // namespace kvmesh::model
