// On a real model, quantised, with the default numerics: one row has the same bits however it is
// run, and a generation without a cache has the ids of one with it. No near ties are excused.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/test_data.h"
#include "tests/unit/engine/bit_equality.h"
#include "tests/unit/engine/engine_chain.h"
#include "tests/unit/engine/reference_data.h"

namespace kvmesh::shard {
namespace {

using nlohmann::json;

constexpr size_t kSteps = 64;
// Each stateless step of a longer prompt takes seconds: a few only, unless KVMESH_TEST_ALL is set.
constexpr size_t kLongPromptTokens = 600;
constexpr size_t kLongPromptSteps = 4;

class RealBitEquality : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path path = testing::TestDataRoot() / "real" / "smollm2.json";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent: passed over";
    expected_ = ReadJson(path);
    auto model = model::Model::Open(ModelFile(expected_["gguf_file"]));
    ASSERT_TRUE(model.ok()) << model.status() << "\nFetch the model with tools/lib/fetch_model.sh.";
    model_ = *std::move(model);
  }

  json expected_;
  std::unique_ptr<model::Model> model_;
};

TEST_F(RealBitEquality, ARowHasTheSameBitsEveryWay) {
  for (const json& prompt : expected_["prompts"]) {
    if (prompt["name"] != "code") continue;
    ExpectSameBitsEveryWay(*model_, {}, prompt["ids"]);
    return;
  }
  ADD_FAILURE() << "no prompt of that name";
}

size_t StepsOf(const json& prompt) {
  const bool is_long = prompt["n_tokens"].get<size_t>() > kLongPromptTokens;
  return is_long && std::getenv("KVMESH_TEST_ALL") == nullptr ? kLongPromptSteps : kSteps;
}

TEST_F(RealBitEquality, WithoutACacheEveryPromptGivesTheIdsOfARunWithIt) {
  auto chain = EngineChain::Make(*model_, {}, {});
  ASSERT_TRUE(chain.ok()) << chain.status();
  size_t cases = 0;
  for (const json& prompt : expected_["prompts"]) {
    SCOPED_TRACE(prompt["name"].get<std::string>());
    const size_t steps = StepsOf(prompt);
    const auto cached = GreedyIds(*chain, prompt["ids"], steps);
    ASSERT_TRUE(cached.ok()) << cached.status();
    const auto stateless = GreedyIdsStateless(*chain, prompt["ids"], steps);
    ASSERT_TRUE(stateless.ok()) << stateless.status();
    EXPECT_EQ(*stateless, *cached);
    ++cases;
  }
  std::printf("%zu cases ran\n", cases);
  EXPECT_GT(cases, 0u);
}

}  // namespace
}  // namespace kvmesh::shard
