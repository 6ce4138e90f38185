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

// Keys and values of one head, in blocks.
struct Cache {
  size_t tokens;
  size_t head_dim;
  std::vector<float> keys, values;  // [tokens, head_dim]
  std::vector<std::vector<float>> blocks;
  std::vector<const float*> starts;

  Cache(size_t token_count, size_t dim)
      : tokens(token_count),
        head_dim(dim),
        keys(RandomVector(tokens * dim, 5)),
        values(RandomVector(tokens * dim, 6)) {
    // What no token has written yet may hold anything.
    blocks.assign((tokens - 1) / kAttentionBlock + 1,
                  std::vector<float>(2 * dim * kAttentionBlock, 1e30f));
    for (size_t token = 0; token < tokens; ++token) {
      std::vector<float>& block = blocks[token / kAttentionBlock];
      const size_t at = token % kAttentionBlock;
      for (size_t i = 0; i < dim; ++i) {
        block[i * kAttentionBlock + at] = keys[token * dim + i];
        block[dim * kAttentionBlock + at * dim + i] = values[token * dim + i];
      }
    }
    for (const auto& block : blocks) starts.push_back(block.data());
  }

  // `queries`: [heads, head_dim].
  std::vector<float> Attend(const Kernels& kernels, const std::vector<float>& queries) const {
    const size_t heads = queries.size() / head_dim;
    const size_t stride = blocks.size() * kAttentionBlock;
    std::vector<float> scores(heads * stride);
    std::vector<float> out(queries.size());
    kernels.attend({.query = queries.data(),
                    .heads = heads,
                    .blocks = starts.data(),
                    .key_offset = 0,
                    .value_offset = head_dim * kAttentionBlock,
                    .tokens = tokens,
                    .head_dim = head_dim,
                    .scale = 0.5f,
                    .scores = scores.data(),
                    .scores_stride = stride,
                    .out = out.data()});
    return out;
  }

  std::vector<double> AttendInDouble(const std::vector<float>& query) const {
    std::vector<double> weights(tokens);
    double sum = 0;
    for (size_t token = 0; token < tokens; ++token) {
      double score = 0;
      for (size_t i = 0; i < head_dim; ++i) {
        score += static_cast<double>(query[i]) * keys[token * head_dim + i];
      }
      weights[token] = std::exp(0.5 * score);
      sum += weights[token];
    }
    std::vector<double> out(head_dim);
    for (size_t token = 0; token < tokens; ++token) {
      for (size_t i = 0; i < head_dim; ++i) {
        out[i] += weights[token] / sum * values[token * head_dim + i];
      }
    }
    return out;
  }
};

TEST_P(KernelsTest, AttentionIsRightOnBothSidesOfEveryBlockBoundary) {
  for (const size_t head_dim : {12u, 16u, 64u, 80u, 128u}) {
    for (const size_t tokens : {1u, 15u, 16u, 17u, 63u, 64u, 65u, 128u, 200u}) {
      const Cache cache(tokens, head_dim);
      const std::vector<float> query = RandomVector(head_dim, 7);
      const std::vector<float> got = cache.Attend(*kernels_, query);
      const std::vector<double> want = cache.AttendInDouble(query);
      for (size_t i = 0; i < head_dim; ++i) {
        ASSERT_NEAR(got[i], want[i], 2e-6) << "head_dim " << head_dim << ", tokens " << tokens;
      }
    }
  }
}

TEST_P(KernelsTest, AHeadHasTheSameBitsAloneAndAmongOthers) {
  for (const size_t head_dim : {12u, 64u}) {
    const Cache cache(100, head_dim);
    for (size_t heads = 1; heads <= kAttentionHeadsMax; ++heads) {
      const std::vector<float> queries = RandomVector(heads * head_dim, 12);
      const std::vector<float> together = cache.Attend(*kernels_, queries);
      for (size_t head = 0; head < heads; ++head) {
        const auto begin = static_cast<ptrdiff_t>(head * head_dim);
        const auto end = static_cast<ptrdiff_t>((head + 1) * head_dim);
        EXPECT_EQ(std::vector<float>(together.begin() + begin, together.begin() + end),
                  cache.Attend(*kernels_, {queries.begin() + begin, queries.begin() + end}))
            << "head " << head << " of " << heads;
      }
    }
  }
}

TEST_P(KernelsTest, HugeScoresDoNotOverflowTheSoftmax) {
  Cache cache(70, 16);
  const std::vector<float> query(16, 1e4f);
  for (const float value : cache.Attend(*kernels_, query)) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(KernelsTest, ANanInTheQueryComesOut) {
  const Cache cache(70, 16);
  std::vector<float> query(16, 1.0f);
  query[3] = std::numeric_limits<float>::quiet_NaN();
  for (const float value : cache.Attend(*kernels_, query)) EXPECT_TRUE(std::isnan(value));
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
