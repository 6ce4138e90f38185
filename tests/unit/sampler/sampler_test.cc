// What the goldens do not reach: the whole of Sample, its logprobs, hostile options, large
// vocabularies.
#include "services/shard/core/sampler.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace kvmesh::shard {
namespace {

using forward::SamplingOptions;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// The definition, by a full sort: first candidate in order whose cumulative probability exceeds the
// number.
uint32_t SampleByFullSort(const std::vector<float>& logits, const SamplingOptions& options,
                          uint64_t position) {
  const auto adjusted = AdjustedLogits(logits, options, {}, 0).value();
  const double uniform = SamplingUniform(options.seed, position);
  const std::vector<Candidate> survivors = Survivors(adjusted, options).value();
  double sum = 0;
  for (const Candidate& candidate : survivors) {
    sum += candidate.probability;
    if (uniform < sum) return candidate.token_id;
  }
  return survivors.back().token_id;
}

TEST(Sampler, PartialSelectionDrawsWhatAFullSortDraws) {
  const std::vector<float> logits = RandomLogits(5000, 1);
  SamplingOptions options;
  for (const auto& [top_k, top_p, min_p] : {std::tuple{0u, 1.0, 0.0},
                                            {40u, 0.9, 0.0},
                                            {0u, 0.99, 0.0},
                                            {0u, 1.0, 0.02},
                                            {1u, 1.0, 0.0}}) {
    options.temperature = 1.3;
    options.top_k = top_k;
    options.top_p = top_p;
    options.min_p = min_p;
    options.seed = 7;
    for (uint64_t position = 0; position < 200; ++position) {
      const auto sampled = Sample(logits, options, {}, 0, position);
      ASSERT_TRUE(sampled.ok());
      EXPECT_EQ(sampled->token_id, SampleByFullSort(logits, options, position)) << position;
    }
  }
}

TEST(Sampler, TheSameSeedAndPositionDrawTheSameTokenWhateverWasDrawnBetween) {
  const std::vector<float> logits = RandomLogits(300, 2);
  SamplingOptions options{.temperature = 1, .seed = 42};
  const auto first = Sample(logits, options, {}, 0, 5);
  SamplingOptions other{.temperature = 1, .seed = 9};
  for (uint64_t position = 0; position < 4; ++position) {
    ASSERT_TRUE(Sample(logits, other, {}, 0, position).ok());
    EXPECT_EQ(Sample(logits, options, {}, 0, 5)->token_id, first->token_id);
  }
}

TEST(Sampler, LogprobsAreOfTheUntouchedLogits) {
  SamplingOptions options;
  options.logprobs = true;
  options.top_logprobs = 2;
  options.logit_bias = {{0, 100.0f}};
  const std::vector<float> logits = {0, 1, 2};
  const auto sampled = Sample(logits, options, {}, 0, 0);
  ASSERT_TRUE(sampled.ok());
  EXPECT_EQ(sampled->token_id, 0u);
  const double log_sum = std::log(1 + std::exp(1.0) + std::exp(2.0));
  EXPECT_EQ(sampled->chosen.token_id, 0u);
  EXPECT_NEAR(sampled->chosen.logprob, 0 - log_sum, 1e-12);
  ASSERT_EQ(sampled->top.size(), 2u);
  EXPECT_EQ(sampled->top[0].token_id, 2u);
  EXPECT_NEAR(sampled->top[0].logprob, 2 - log_sum, 1e-12);
  EXPECT_EQ(sampled->top[1].token_id, 1u);
}

TEST(Sampler, MoreTopLogprobsThanTokensAreAllTokens) {
  SamplingOptions options{.logprobs = true, .top_logprobs = 20};
  const auto sampled = Sample(std::vector<float>{1, 2}, options, {}, 0, 0);
  ASSERT_TRUE(sampled.ok());
  EXPECT_EQ(sampled->top.size(), 2u);
}

TEST(Sampler, NoValueOfAnyOptionMakesAnIdOutsideTheVocabulary) {
  const double nan = kNan;
  const double infinity = kInfinity;
  const std::vector<float> logits = RandomLogits(16, 3);
  const std::vector<uint32_t> history = {0, 1, 99, 4000000000u, 1};
  for (const double value : {nan, infinity, -infinity, 0.0, -1.0, 1e300, 1e-300}) {
    for (int field = 0; field < 6; ++field) {
      SamplingOptions options{.temperature = 1, .logprobs = true, .top_logprobs = 3};
      double* fields[] = {&options.temperature,
                          &options.top_p,
                          &options.min_p,
                          &options.repetition_penalty,
                          &options.presence_penalty,
                          &options.frequency_penalty};
      *fields[field] = value;
      const auto sampled = Sample(logits, options, history, 2, 5);
      if (!sampled.ok()) continue;
      EXPECT_LT(sampled->token_id, logits.size()) << "field " << field << ", value " << value;
    }
  }
}

TEST(Sampler, BiasAndHistoryOutsideTheVocabularyAreIgnored) {
  SamplingOptions options{.repetition_penalty = 2, .presence_penalty = 1};
  options.logit_bias = {{7, 100.0f}};
  const std::vector<uint32_t> history = {3, 0xFFFFFFFF};
  const auto sampled = Sample(std::vector<float>{1, 2, 0}, options, history, 1, 2);
  ASSERT_TRUE(sampled.ok());
  EXPECT_EQ(sampled->token_id, 1u);
}

TEST(Sampler, ABiasOfMinusInfinityOnEverythingLeavesNoCandidates) {
  SamplingOptions options;
  options.logit_bias = {{0, -kInfinity}, {1, -kInfinity}};
  const auto sampled = Sample(std::vector<float>{1, 2}, options, {}, 0, 0);
  EXPECT_EQ(sampled.status().message(), "no_candidates");
}

// Sizes around those that are looked at together.
TEST(Sampler, TheHighestAndTheFirstOfEqualsAreFoundAtEveryPlace) {
  for (const size_t size : std::vector<size_t>{1, 2, 15, 16, 17, 511, 512, 513, 1024, 1040, 1600}) {
    for (size_t place = 0; place < size; place += 7) {
      std::vector<float> logits(size, -1.5f);
      logits[place] = -0.5f;
      EXPECT_EQ(Sample(logits, {}, {}, 0, 0)->token_id, place) << size;
      logits.back() = -0.5f;
      EXPECT_EQ(Sample(logits, {}, {}, 0, 0)->token_id, place) << size;
      logits[place] = kNan;
      EXPECT_EQ(Sample(logits, {}, {}, 0, 0).status().message(), "nan_logits") << size;
    }
  }
}

TEST(Sampler, NoLogitsAtAllAreNoCandidates) {
  EXPECT_EQ(Sample({}, SamplingOptions{}, {}, 0, 0).status().message(), "no_candidates");
}

TEST(Sampler, ANanAnywhereIsAnErrorWhateverTheOptions) {
  for (const double temperature : {0.0, 1.0}) {
    for (size_t at = 0; at < 3; ++at) {
      std::vector<float> logits = {1, 2, 3};
      logits[at] = kNan;
      const auto sampled = Sample(logits, SamplingOptions{.temperature = temperature}, {}, 0, 0);
      EXPECT_EQ(sampled.status().message(), "nan_logits");
    }
  }
}

}  // namespace
}  // namespace kvmesh::shard
