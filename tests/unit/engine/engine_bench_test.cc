// The measurement of one engine.
#include "services/shard/engine/engine_bench.h"

#include "gtest/gtest.h"
#include "tests/testing/test_data.h"

namespace kvmesh::shard {
namespace {

TEST(EngineBench, MeasuringRunsEveryStepAskedFor) {
  const auto model = model::Model::Open(testing::TestDataRoot() / "models" / "llama-tied");
  ASSERT_TRUE(model.ok()) << model.status();
  const MonotonicClock clock;
  const auto result = MeasureEngine(**model,
                                    {.engine = {.threads = 1},
                                     .prompt_tokens = 40,
                                     .decode_tokens = 3,
                                     .stateless_lengths = {5, 9}},
                                    clock);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->decode_steps.size(), 3u);
  EXPECT_EQ(result->stateless_steps.size(), 2u);
  EXPECT_GT(result->prefill_tokens_per_second, 0);
  EXPECT_EQ(MeasureEngine(**model, {.prompt_tokens = 0}, clock).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MeasureEngine(**model, {.prompt_tokens = 1u << 30}, clock).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvmesh::shard
