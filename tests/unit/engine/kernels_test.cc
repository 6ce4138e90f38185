// Every level of the kernels that this processor runs, against the same sums in double.
#include "services/shard/engine/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace kvmesh::shard {
namespace {

std::vector<float> RandomVector(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

class KernelsTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    kernels_ = KernelsOfLevel(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "this processor lacks level " << GetParam();
  }
  const Kernels* kernels_ = nullptr;
};

TEST_P(KernelsTest, DotProductsOfEveryLengthAreRight) {
  for (const size_t n : {1u, 15u, 16u, 17u, 63u, 64u, 65u, 128u, 576u, 1000u}) {
    const std::vector<float> weights = RandomVector(n, 1);
    const std::vector<float> x = RandomVector(n, 2);
    double want = 0;
    for (size_t i = 0; i < n; ++i) want += static_cast<double>(weights[i]) * x[i];
    float got = 0;
    kernels_->dot_rows(weights.data(), n, x.data(), 1, n, &got, 1);
    EXPECT_NEAR(got, want, 1e-6 * static_cast<double>(n)) << n;
  }
}

TEST_P(KernelsTest, ARowHasTheSameBitsAloneAndAmongOthers) {
  for (const size_t n : {48u, 77u, 576u}) {
    const std::vector<float> weights = RandomVector(n, 3);
    const std::vector<float> x = RandomVector(n * 9, 4);
    std::vector<float> together(9 * 2);
    kernels_->dot_rows(weights.data(), n, x.data(), 9, n, together.data(), 2);
    for (size_t row = 0; row < 9; ++row) {
      float alone = 0;
      kernels_->dot_rows(weights.data(), n, x.data() + row * n, 1, n, &alone, 1);
      EXPECT_EQ(together[row * 2], alone) << "row " << row << " of length " << n;
    }
  }
}

TEST_P(KernelsTest, SiluIsRightOverItsWholeRange) {
  for (const size_t n : {1u, 16u, 33u}) {
    for (const float scale : {1.0f, 20.0f, 120.0f}) {
      std::vector<float> gate = RandomVector(n, 8);
      for (float& value : gate) value *= scale;
      const std::vector<float> x = gate;
      const std::vector<float> up = RandomVector(n, 9);
      kernels_->silu_multiply(gate.data(), up.data(), n);
      for (size_t i = 0; i < n; ++i) {
        const double want = x[i] / (1 + std::exp(-static_cast<double>(x[i]))) * up[i];
        EXPECT_NEAR(gate[i], want, 1e-6 * std::max(1.0, std::abs(want))) << x[i];
      }
    }
  }
}

TEST_P(KernelsTest, SiluOfNanIsNan) {
  std::vector<float> gate(20, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> up(20, 1.0f);
  kernels_->silu_multiply(gate.data(), up.data(), gate.size());
  for (const float value : gate) EXPECT_TRUE(std::isnan(value));
}

TEST_P(KernelsTest, RmsNormDividesByTheRootOfTheMeanSquare) {
  for (const size_t n : {1u, 48u, 577u}) {
    const std::vector<float> x = RandomVector(n, 10);
    const std::vector<float> weight = RandomVector(n, 11);
    std::vector<float> got(n);
    kernels_->rms_norm(x.data(), weight.data(), n, 1e-3f, got.data());
    double sum = 0;
    for (const float value : x) sum += static_cast<double>(value) * value;
    const double root = std::sqrt(sum / static_cast<double>(n) + 1e-3);
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(got[i], x[i] / root * weight[i], 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, KernelsTest, ::testing::Values(2, 3, 4));

TEST(Kernels, TheProcessorsOwnAreOneOfTheLevels) {
  const Kernels* own = &CpuKernels();
  EXPECT_TRUE(own == KernelsOfLevel(2) || own == KernelsOfLevel(3) || own == KernelsOfLevel(4));
  EXPECT_EQ(KernelsOfLevel(5), nullptr);
}

}  // namespace
}  // namespace kvmesh::shard
