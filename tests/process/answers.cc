#include "tests/process/answers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace kvmesh::process_testing {
namespace {

void ExpectSameLogprob(const v1::TokenLogprob& one, const v1::TokenLogprob& other) {
  EXPECT_EQ(one.token_id(), other.token_id());
  EXPECT_EQ(one.logprob(), other.logprob());
  EXPECT_EQ(one.piece(), other.piece());
}

void ExpectSameLogprobs(const v1::Logprobs& one, const v1::Logprobs& other) {
  ExpectSameLogprob(one.chosen(), other.chosen());
  ASSERT_EQ(one.top_size(), other.top_size());
  for (int i = 0; i < one.top_size(); ++i) ExpectSameLogprob(one.top(i), other.top(i));
}

}  // namespace

bool TestAll() {
  return std::getenv("KVMESH_TEST_ALL") != nullptr;
}

v1::GenerateRequest AskForIds(absl::Span<const uint32_t> ids, uint32_t tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.mutable_options()->set_max_tokens(tokens);
  request.mutable_options()->set_ignore_eos(true);
  request.mutable_options()->set_return_token_ids(true);
  return request;
}

v1::GenerateRequest Uncached(const v1::GenerateRequest& request, const Answer& answer,
                             v1::CacheUse cache, uint32_t tokens) {
  v1::GenerateRequest same = request;
  *same.mutable_token_ids()->mutable_ids() = answer.finished.effective_prompt_ids();
  v1::GenerationOptions& options = *same.mutable_options();
  options.clear_parent_key();
  options.set_cache(cache);
  options.set_max_tokens(std::min(options.max_tokens(), tokens));
  options.mutable_sampling()->set_seed(answer.finished.seed());
  return same;
}

void ExpectBegins(const Answer& answer, const Answer& other) {
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_TRUE(other.status.ok()) << other.status;
  ASSERT_FALSE(other.ids.empty());
  ASSERT_GE(answer.ids.size(), other.ids.size());
  EXPECT_TRUE(std::equal(other.ids.begin(), other.ids.end(), answer.ids.begin()))
      << ::testing::PrintToString(answer.ids) << " but uncached "
      << ::testing::PrintToString(other.ids);
  ASSERT_GE(answer.logprobs.size(), other.logprobs.size());
  for (size_t i = 0; i < other.logprobs.size(); ++i) {
    ExpectSameLogprobs(answer.logprobs[i], other.logprobs[i]);
  }
}

void ExpectEqual(const Answer& answer, const Answer& other) {
  ExpectBegins(answer, other);
  EXPECT_EQ(answer.ids, other.ids);
  EXPECT_EQ(answer.text, other.text);
  EXPECT_EQ(answer.logprobs.size(), other.logprobs.size());
}

}  // namespace kvmesh::process_testing
