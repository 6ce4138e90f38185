// What a step does beside products, with every instruction set that runs here: against float64
// within derived bounds, and the same bits from all.
#include "services/shard/engine/kernels/step_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/engine/kernel_testing.h"

namespace kvmesh::shard {
namespace {

constexpr size_t kSizes[] = {1, 15, 16, 17, 48, 63, 64, 65, 576, 1001};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class StepKernelsTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (!MissingFeatures(GetParam()).empty()) GTEST_SKIP() << "not on this processor";
  }
  const StepKernels& kernels_ = StepKernelsOf(GetParam());
};

std::vector<float> RmsNorm(const StepKernels& kernels, const std::vector<float>& x,
                           const std::vector<float>& weight) {
  std::vector<float> out(x.size());
  kernels.rms_norm(x.data(), weight.data(), x.size(), 1e-5f, out.data());
  return out;
}

// The sum of squares is a chain of at most n/64 + 1 additions in each accumulator, then six more:
// with the division, the root and its inverse a relative error of at most (n/64 + 11) u / 2 + 4 u;
// two products follow.
TEST_P(StepKernelsTest, RmsNormIsWithinItsBoundOfFloat64) {
  for (const size_t n : kSizes) {
    const std::vector<float> x = RandomFloats(n, 10, 100.0f);
    const std::vector<float> weight = RandomFloats(n, 11);
    const std::vector<float> got = RmsNorm(kernels_, x, weight);
    double sum = 0;
    for (const float value : x) sum += static_cast<double>(value) * value;
    const double root = std::sqrt(sum / static_cast<double>(n) + static_cast<double>(1e-5f));
    const double relative = (static_cast<double>(n) / 128 + 12) * kRoundoff;
    for (size_t i = 0; i < n; ++i) {
      const double want = x[i] / root * weight[i];
      EXPECT_NEAR(got[i], want, relative * std::abs(want)) << n;
    }
  }
}

TEST_P(StepKernelsTest, RmsNormOfDenormalsAndZerosIsFinite) {
  const std::vector<float> weight(70, 1.0f);
  for (const float value : {0.0f, 1e-40f, std::numeric_limits<float>::denorm_min()}) {
    for (const float out : RmsNorm(kernels_, std::vector<float>(70, value), weight)) {
      EXPECT_TRUE(std::isfinite(out)) << value;
    }
  }
}

// exp is within 2 ulp (4 u) and so is 1 + exp, whose own rounding, the division and the product
// add 3 u.
TEST_P(StepKernelsTest, SiluIsWithinItsBoundOfFloat64OverItsWholeRange) {
  for (const size_t n : kSizes) {
    for (const float scale : {1e-3f, 1.0f, 20.0f, 87.0f}) {
      std::vector<float> gate = RandomFloats(n, 8, scale);
      const std::vector<float> x = gate;
      const std::vector<float> up = RandomFloats(n, 9);
      kernels_.silu_multiply(gate.data(), up.data(), n);
      for (size_t i = 0; i < n; ++i) {
        const double want = x[i] / (1 + std::exp(-static_cast<double>(x[i]))) * up[i];
        EXPECT_NEAR(gate[i], want, 8 * kRoundoff * std::abs(want)) << x[i];
      }
    }
  }
}

TEST_P(StepKernelsTest, SiluOfTheLargestAndSmallestIsTheNumberOrNearZero) {
  std::vector<float> gate = {3e38f, 200.0f, -200.0f, -3e38f, 0.0f, kInfinity, kNan};
  const std::vector<float> up(gate.size(), 1.0f);
  kernels_.silu_multiply(gate.data(), up.data(), gate.size());
  EXPECT_EQ(gate[0], 3e38f);
  EXPECT_EQ(gate[1], 200.0f);
  EXPECT_NEAR(gate[2], 0, 1e-30);
  EXPECT_NEAR(gate[3], 0, 3);  // -3e38 / e^88.3: exp stops there
  EXPECT_EQ(gate[4], 0.0f);
  EXPECT_EQ(gate[5], kInfinity);
  EXPECT_TRUE(std::isnan(gate[6]));
}

// Each rotated element is two products and a sum: 1.5 u of the two products' magnitudes, doubled
// for the rounding of the angles' cosines.
TEST_P(StepKernelsTest, RotationTurnsPairsHalfAHeadApartAndLeavesTheRest) {
  constexpr size_t kHeads = 3;
  for (const size_t half : {1u, 4u, 16u, 20u}) {
    const size_t head_dim = 2 * half + 3;
    std::vector<float> cos_sin(2 * half);
    for (size_t i = 0; i < half; ++i) {
      cos_sin[i] = static_cast<float>(std::cos(0.1 * static_cast<double>(i + 1)));
      cos_sin[half + i] = static_cast<float>(std::sin(0.1 * static_cast<double>(i + 1)));
    }
    std::vector<float> x = RandomFloats(kHeads * head_dim, 3);
    const std::vector<float> before = x;
    kernels_.rotate(cos_sin.data(), half, kHeads, head_dim, x.data());
    for (size_t head = 0; head < kHeads; ++head) {
      const float* from = before.data() + head * head_dim;
      const float* to = x.data() + head * head_dim;
      for (size_t i = 0; i < half; ++i) {
        const double c = std::cos(0.1 * static_cast<double>(i + 1));
        const double s = std::sin(0.1 * static_cast<double>(i + 1));
        const double bound = 3 * kRoundoff * (std::abs(from[i]) + std::abs(from[i + half]));
        EXPECT_NEAR(to[i], from[i] * c - from[i + half] * s, bound);
        EXPECT_NEAR(to[i + half], from[i + half] * c + from[i] * s, bound);
      }
      for (size_t i = 2 * half; i < head_dim; ++i) EXPECT_EQ(to[i], from[i]);
    }
  }
}

std::vector<float> RoundedAndWidened(const StepKernels& kernels, KvDtype dtype,
                                     const std::vector<float>& x, size_t* saturated) {
  std::vector<uint8_t> stored(x.size() * sizeof(float));
  std::vector<float> widened(x.size());
  const auto type = static_cast<size_t>(dtype);
  *saturated = kernels.round[type](x.data(), x.size(), stored.data());
  kernels.widen[type](stored.data(), x.size(), widened.data());
  return widened;
}

TEST_P(StepKernelsTest, RoundingIsToTheNearestWithTiesToEven) {
  struct Case {
    KvDtype dtype;
    float x;
    float want;
  };
  const Case cases[] = {{KvDtype::kF16, 0x1.002p0f, 0x1p0f},         // half way, down to even
                        {KvDtype::kF16, 0x1.006p0f, 0x1.008p0f},     // half way, up to even
                        {KvDtype::kF16, 0x1.00201p0f, 0x1.004p0f},   // just above half way
                        {KvDtype::kF16, 0x1p-24f, 0x1p-24f},         // its smallest
                        {KvDtype::kF16, 0x1p-25f, 0.0f},             // half of that, to even
                        {KvDtype::kF16, 65504.0f, 65504.0f},         // its largest
                        {KvDtype::kBF16, 0x1.01p0f, 0x1p0f},         // half way, down to even
                        {KvDtype::kBF16, 0x1.03p0f, 0x1.04p0f},      // half way, up to even
                        {KvDtype::kBF16, -0x1.0102p0f, -0x1.02p0f},  // just beyond half way
                        {KvDtype::kBF16, 0x1.fep127f, 0x1.fep127f},  // its largest
                        {KvDtype::kBF16, 0x1p-133f, 0x1p-133f},      // its smallest
                        {KvDtype::kF32, 0x1.000002p0f, 0x1.000002p0f}};
  for (const Case& c : cases) {
    for (const size_t n : {1u, 16u, 19u}) {
      size_t saturated = 0;
      const auto got = RoundedAndWidened(kernels_, c.dtype, std::vector<float>(n, c.x), &saturated);
      EXPECT_TRUE(SameBits(got, std::vector<float>(n, c.want))) << c.x << " became " << got[0];
      EXPECT_EQ(saturated, 0u) << c.x;
    }
  }
}

TEST_P(StepKernelsTest, WhatIsBeyondTheLargestBecomesItAndIsCounted) {
  const std::vector<float> x = {65505.0f, -1e30f, kInfinity, -kInfinity, 1.0f, kNan};
  size_t saturated = 0;
  const auto half = RoundedAndWidened(kernels_, KvDtype::kF16, x, &saturated);
  EXPECT_EQ(saturated, 4u);
  EXPECT_EQ(half[0], 65504.0f);
  EXPECT_EQ(half[1], -65504.0f);
  EXPECT_EQ(half[2], 65504.0f);
  EXPECT_EQ(half[3], -65504.0f);
  EXPECT_EQ(half[4], 1.0f);
  EXPECT_TRUE(std::isnan(half[5]));
  const auto brain = RoundedAndWidened(kernels_, KvDtype::kBF16, x, &saturated);
  EXPECT_EQ(saturated, 2u);
  EXPECT_EQ(brain[2], 0x1.fep127f);
  EXPECT_EQ(brain[3], -0x1.fep127f);
  EXPECT_TRUE(std::isnan(brain[5]));
  const auto single = RoundedAndWidened(kernels_, KvDtype::kF32, x, &saturated);
  EXPECT_EQ(saturated, 0u);
  EXPECT_EQ(single[2], kInfinity);
}

TEST_P(StepKernelsTest, NanComesOutOfEveryKernelWhereItWentIn) {
  std::vector<float> x = RandomFloats(40, 1);
  x[33] = kNan;
  const std::vector<float> ones(40, 1.0f);
  for (const float out : RmsNorm(kernels_, x, ones)) EXPECT_TRUE(std::isnan(out));
  std::vector<float> gate = x;
  kernels_.silu_multiply(gate.data(), ones.data(), gate.size());
  std::vector<float> sum = ones;
  kernels_.add(sum.data(), x.data(), sum.size());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(std::isnan(gate[i]), i == 33);
    EXPECT_EQ(std::isnan(sum[i]), i == 33);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, StepKernelsTest, ::testing::ValuesIn(kInstructionSets));

TEST(StepKernels, EverySetGivesTheSameBits) {
  const StepKernels& first = StepKernelsOf(kInstructionSets[0]);
  for (const InstructionSet set : kInstructionSets) {
    if (!MissingFeatures(set).empty()) continue;
    const StepKernels& kernels = StepKernelsOf(set);
    for (const size_t n : kSizes) {
      const std::vector<float> x = RandomFloats(n, 20, 30.0f);
      const std::vector<float> y = RandomFloats(n, 21);
      EXPECT_TRUE(SameBits(RmsNorm(kernels, x, y), RmsNorm(first, x, y)));
      std::vector<float> gate = x;
      std::vector<float> first_gate = x;
      kernels.silu_multiply(gate.data(), y.data(), n);
      first.silu_multiply(first_gate.data(), y.data(), n);
      EXPECT_TRUE(SameBits(gate, first_gate)) << n;
      std::vector<float> turned = x;
      std::vector<float> first_turned = x;
      kernels.rotate(y.data(), n / 2, 1, n, turned.data());
      first.rotate(y.data(), n / 2, 1, n, first_turned.data());
      EXPECT_TRUE(SameBits(turned, first_turned)) << n;
      for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kBF16, KvDtype::kF32}) {
        size_t saturated = 0;
        EXPECT_TRUE(SameBits(RoundedAndWidened(kernels, dtype, x, &saturated),
                             RoundedAndWidened(first, dtype, x, &saturated)));
      }
    }
  }
}

}  // namespace
}  // namespace kvmesh::shard
