// The measurement of one engine.
#include "services/shard/engine/engine_bench.h"

#include <memory>

#include "gtest/gtest.h"
#include "tests/testing/test_data.h"

namespace kvmesh::shard {
namespace {

class EngineBench : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = model::Model::Open(testing::TestDataRoot() / "models" / "llama-tied");
    ASSERT_TRUE(opened.ok()) << opened.status();
    model_ = *std::move(opened);
  }
  absl::StatusCode CodeOf(const EngineBenchOptions& options) {
    return MeasureEngine(*model_, options, clock_).status().code();
  }

  std::unique_ptr<model::Model> model_;
  MonotonicClock clock_;
};

TEST_F(EngineBench, MeasuringRunsEveryStepAskedForAndSaysWhatItCost) {
  const auto result = MeasureEngine(*model_,
                                    {.engine = {.threads = 1},
                                     .prompt_tokens = 40,
                                     .decode_tokens = 3,
                                     .sessions = 2,
                                     .rounds = 2},
                                    clock_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->prefill.size(), 4u);
  EXPECT_EQ(result->decode.size(), 6u);
  EXPECT_EQ(result->threads, 1u);
  EXPECT_GT(result->bounds.bytes_read, 0);
  EXPECT_GT(result->bounds.float_operations, 0);
  EXPECT_GT(result->bounds.word_operations, 0);
  EXPECT_GE(result->first_token, result->load);
  EXPECT_GT(result->peak_memory_bytes, result->weight_bytes);

  // A step reads every matrix once for both sessions, and the keys and values of each.
  const model::ModelConfig& config = model_->config();
  const uint64_t row_bytes =
      uint64_t{2} * 2 * config.kv_head_count * config.head_dim * config.layer_count;
  for (size_t step = 0; step < result->decode.size(); ++step) {
    const TimedWork& work = result->decode[step];
    EXPECT_EQ(work.costs.attended_bytes, 2 * (41 + step % 3) * row_bytes);
    EXPECT_EQ(work.costs.weight_bytes, result->decode[0].costs.weight_bytes);
    EXPECT_GT(work.costs.products, absl::ZeroDuration());
    EXPECT_GT(work.costs.attention, absl::ZeroDuration());
    EXPECT_GE(work.time, work.costs.products + work.costs.attention);
  }
  const StepCosts& decode = result->decode[0].costs;
  EXPECT_GT(decode.weight_bytes, 0u);
  EXPECT_LE(decode.weight_bytes, result->weight_bytes);
  EXPECT_GT(decode.float_operations + decode.word_operations, 0u);
}

TEST_F(EngineBench, WhatCannotBeMeasuredIsRefused) {
  EXPECT_EQ(CodeOf({.prompt_tokens = 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf({.prompt_tokens = 1u << 30}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf({.prompt_tokens = 1, .sessions = 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf({.prompt_tokens = 1, .sessions = 1025}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf({.prompt_tokens = 1, .rounds = 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf({.engine = {.numerics = "torch"}}), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvmesh::shard
