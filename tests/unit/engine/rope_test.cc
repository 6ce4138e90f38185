// The rotary angles, the processor quota.
#include <cmath>
#include <numbers>
#include <vector>

#include "common/base/cpu_count.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/shard/engine/rope.h"

namespace kvmesh::shard {
namespace {

TEST(Rope, FrequenciesFallGeometrically) {
  model::RopeConfig rope{.theta = 10000, .dims = 8};
  const std::vector<float> got = RopeFrequencies(rope);
  ASSERT_EQ(got.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const double want = std::pow(10000.0, -static_cast<double>(i) / 4);
    EXPECT_NEAR(got[i], want, 1e-6 * want);
  }
}

TEST(Rope, LinearScalingAndFactorsOfTheFileDivideFrequencies) {
  model::RopeConfig rope{.theta = 10000, .dims = 4};
  const std::vector<float> plain = RopeFrequencies(rope);
  rope.scaling = model::RopeScaling::kLinear;
  rope.factor = 8;
  EXPECT_FLOAT_EQ(RopeFrequencies(rope)[1], plain[1] / 8);
  rope.scaling = model::RopeScaling::kNone;
  rope.freq_factors = {1, 4};
  EXPECT_FLOAT_EQ(RopeFrequencies(rope)[0], plain[0]);
  EXPECT_FLOAT_EQ(RopeFrequencies(rope)[1], plain[1] / 4);
}

TEST(Rope, Llama3ScalingKeepsShortWavesAndDividesLongOnes) {
  model::RopeConfig rope{.theta = 500000,
                         .dims = 64,
                         .scaling = model::RopeScaling::kLlama3,
                         .factor = 8,
                         .low_freq_factor = 1,
                         .high_freq_factor = 4,
                         .original_context = 8192};
  const std::vector<float> scaled = RopeFrequencies(rope);
  rope.scaling = model::RopeScaling::kNone;
  const std::vector<float> plain = RopeFrequencies(rope);
  size_t kept = 0, divided = 0, between = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i];
    if (wavelength < 8192.0 / 4) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wavelength > 8192.0) {
      EXPECT_FLOAT_EQ(scaled[i], plain[i] / 8);
      ++divided;
    } else {
      EXPECT_LT(scaled[i], plain[i]);
      EXPECT_GT(scaled[i], plain[i] / 8);
      ++between;
    }
  }
  EXPECT_GT(kept, 0u);
  EXPECT_GT(divided, 0u);
  EXPECT_GT(between, 0u);
}

TEST(Rope, TurnsPairsHalfAHeadApartAndLeavesTheRest) {
  const std::vector<float> frequencies = {1.0f};
  std::vector<float> cos_sin(2);
  RopeAngles(frequencies, 1, cos_sin.data());
  std::vector<float> x = {1, 0, 5, 0, 1, 6};  // two heads of three, two elements of each turned
  RotateHeads(cos_sin.data(), 1, 2, 3, x.data());
  const float c = std::cos(1.0f);
  const float s = std::sin(1.0f);
  EXPECT_THAT(
      x, ::testing::Pointwise(::testing::FloatNear(1e-6f), std::vector<float>{c, s, 5, -s, c, 6}));
}

TEST(Rope, PositionZeroTurnsNothing) {
  std::vector<float> cos_sin(4);
  RopeAngles({0.3f, 0.7f}, 0, cos_sin.data());
  EXPECT_THAT(cos_sin, ::testing::ElementsAre(1, 1, 0, 0));
}

TEST(CpuCount, AQuotaIsRoundedUpToWholeProcessors) {
  EXPECT_EQ(CpuQuota("200000 100000"), 2u);
  EXPECT_EQ(CpuQuota("200001 100000"), 3u);
  EXPECT_EQ(CpuQuota("1000 100000"), 1u);
  EXPECT_EQ(CpuQuota("150000 100000\n"), 2u);
}

TEST(CpuCount, NoQuotaIsNoQuota) {
  for (const char* line :
       {"max 100000", "", " ", "-1 100000", "100000 0", "1", "a b", "0 100000"}) {
    EXPECT_EQ(CpuQuota(line), std::nullopt) << line;
  }
}

TEST(CpuCount, AtLeastOneProcessorIsUsable) {
  EXPECT_GE(UsableCpuCount(), 1u);
}

}  // namespace
}  // namespace kvmesh::shard
