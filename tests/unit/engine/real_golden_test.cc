// A real model against the reference: every prompt of real/*.json over one, two and three engines
// with a cache, and stateless where the prompt is short.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/model/gguf.h"
#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_data.h"
#include "tests/unit/engine/engine_chain.h"
#include "tests/unit/engine/reference_data.h"

namespace kvmesh::shard {
namespace {

using nlohmann::json;

constexpr double kTopTolerance = 5e-3;
// Longer prompts are run for a few steps only: it is their prefill that they are for.
constexpr size_t kLongPromptTokens = 600;
constexpr size_t kLongPromptSteps = 8;
constexpr size_t kStatelessPromptMax = 160;  // tokens
constexpr size_t kStatelessSteps = 2;
constexpr size_t kChunkTokens = 512;

std::filesystem::path ModelFile(const std::string& name) {
  const char* folder = std::getenv("KVMESH_MODEL_DIR");
  return std::filesystem::path(folder != nullptr ? folder : "build/models") / name;
}

size_t StepsOf(const json& prompt) {
  const size_t stable = prompt["stable_steps"];
  return prompt["n_tokens"].get<size_t>() > kLongPromptTokens ? std::min(stable, kLongPromptSteps)
                                                              : stable;
}

// Prefill in chunks, as the mesh does; the answer to the last one.
absl::StatusOr<FedRows> Prefill(EngineChain& chain, const std::vector<uint32_t>& ids) {
  chain.NewSession();
  for (size_t begin = 0;; begin += kChunkTokens) {
    const size_t end = std::min(begin + kChunkTokens, ids.size());
    auto fed = chain.Feed(
        {ids.begin() + static_cast<ptrdiff_t>(begin), ids.begin() + static_cast<ptrdiff_t>(end)});
    if (!fed.ok() || end == ids.size()) return fed;
  }
}

void CheckTop(const std::vector<float>& logits, const json& top) {
  for (const json& entry : top) {
    EXPECT_NEAR(logits[entry["id"].get<size_t>()], entry["logit"].get<double>(), kTopTolerance);
  }
}

std::vector<uint32_t> FirstIds(const json& prompt, size_t count) {
  auto ids = prompt["greedy_ids"].get<std::vector<uint32_t>>();
  ids.resize(count);
  return ids;
}

void CheckPrompt(EngineChain& chain, const json& prompt) {
  const auto ids = prompt["ids"].get<std::vector<uint32_t>>();
  auto fed = Prefill(chain, ids);
  ASSERT_TRUE(fed.ok()) << fed.status();
  CheckTop(fed->logits, prompt["top10"]);
  std::vector<uint32_t> got;
  while (got.size() < StepsOf(prompt)) {
    got.push_back(Greedy(fed->logits));
    fed = chain.Feed({got.back()});
    ASSERT_TRUE(fed.ok()) << fed.status();
  }
  EXPECT_EQ(got, FirstIds(prompt, StepsOf(prompt)));
}

// Runs without a cache give the same ids. After a few real steps, one pass over the prompt and the
// reference's ids stands for the others: row by row it computes what the step with that many tokens
// computes, in the same products.
void CheckStateless(EngineChain& chain, const json& prompt) {
  if (prompt["n_tokens"].get<size_t>() >= kStatelessPromptMax) return;
  const size_t steps = StepsOf(prompt);
  const size_t real_steps = std::min(steps, kStatelessSteps);
  const auto got = GreedyIdsStateless(chain, prompt["ids"], real_steps);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, FirstIds(prompt, real_steps));

  auto ids = prompt["ids"].get<std::vector<uint32_t>>();
  const size_t prompt_tokens = ids.size();
  const std::vector<uint32_t> want = FirstIds(prompt, steps);
  ids.insert(ids.end(), want.begin(), want.end() - 1);
  const auto fed = chain.FeedStateless(ids);
  ASSERT_TRUE(fed.ok()) << fed.status();
  const size_t hidden_size = chain.tail().info().config.hidden_size;
  for (size_t step = 0; step < steps; ++step) {
    const size_t row = prompt_tokens - 1 + step;
    const auto logits = chain.tail().Logits(Row(fed->stage_hidden.back(), row, hidden_size));
    ASSERT_TRUE(logits.ok()) << logits.status();
    EXPECT_EQ(Greedy(*logits), want[step]) << "step " << step;
  }
}

// A file with the metadata of `expected` and nothing else: what stands for a model that is not
// fetched, because it cannot be run yet.
std::filesystem::path HeaderOnlyModel(const json& expected);

size_t CheckModel(const json& expected) {
  const std::filesystem::path path = ModelFile(expected["gguf_file"]);
  auto model = model::Model::Open(path);
  if (!model.ok()) {
    ADD_FAILURE() << model.status() << "\nFetch the model with tools/lib/fetch_model.sh.";
    return 0;
  }
  const uint32_t layers = (*model)->config().layer_count;
  for (const uint32_t stages : {1u, 2u, 3u}) {
    SCOPED_TRACE(::testing::Message() << stages << " engines");
    std::vector<uint32_t> cuts;
    for (uint32_t stage = 1; stage < stages; ++stage) cuts.push_back(layers * stage / stages);
    auto chain = EngineChain::Make(**model, cuts, {.kv_dtype = KvDtype::kF32});
    if (!chain.ok()) {
      ADD_FAILURE() << chain.status();
      return 0;
    }
    for (const json& prompt : expected["prompts"]) {
      SCOPED_TRACE(prompt["name"].get<std::string>());
      CheckPrompt(*chain, prompt);
      if (stages == 1) CheckStateless(*chain, prompt);
    }
  }
  return expected["prompts"].size();
}

TEST(EngineGolden, RealModels) {
  const std::filesystem::path root = testing::TestDataRoot() / "real";
  if (testing::FolderIsAbsent(root)) return;
  size_t cases = 0;
  for (const auto& path : testing::ListFolder(root)) {
    if (path.extension() != ".json") continue;
    SCOPED_TRACE(path.string());
    const json expected = ReadJson(path);
    const std::string architecture = expected["gguf_metadata"]["general.architecture"];
    if (ArchitectureIsSupported(architecture)) {
      cases += CheckModel(expected);
      continue;
    }
    const std::filesystem::path fetched = ModelFile(expected["gguf_file"]);
    ExpectRefusedByName(std::filesystem::exists(fetched) ? fetched : HeaderOnlyModel(expected),
                        {architecture});
    ++cases;
  }
  std::printf("%zu cases ran\n", cases);
  EXPECT_GT(cases, 0u);
}

std::filesystem::path HeaderOnlyModel(const json& expected) {
  const auto number = [](uint64_t value, size_t bytes) {
    return std::string(reinterpret_cast<const char*>(&value), bytes);
  };
  const auto text = [&](const std::string& value) { return number(value.size(), 8) + value; };
  const std::string key = "general.architecture";
  const std::string value = expected["gguf_metadata"][key];
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) / expected["gguf_file"].get<std::string>();
  std::ofstream file(path, std::ios::binary);
  file << "GGUF" << number(3, 4) << number(0, 8) << number(1, 8) << text(key)
       << number(static_cast<uint32_t>(model::GgufValueType::kString), 4) << text(value);
  file.close();
  return path;
}

}  // namespace
}  // namespace kvmesh::shard
