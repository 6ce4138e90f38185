// A real model against the reference: every prompt of real/*.json over one, two and three engines.
// That runs without a cache give the same ids is in real_bit_equality_test.cc.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/model/gguf.h"
#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_data.h"
#include "tests/unit/engine/bit_equality.h"
#include "tests/unit/engine/engine_chain.h"
#include "tests/unit/engine/reference_data.h"

namespace kvmesh::shard {
namespace {

using nlohmann::json;

constexpr double kTopTolerance = 5e-3;
// Longer prompts are run for a few steps only: it is their prefill that they are for.
constexpr size_t kLongPromptTokens = 600;
constexpr size_t kLongPromptSteps = 8;
constexpr size_t kChunkTokens = 512;

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

// Reference precision: unrounded keys and values, and activations.
constexpr char kExactNumerics[] = "fma32";

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

// `exact`: logits are those of the reference, too.
void CheckPrompt(EngineChain& chain, const json& prompt, bool exact) {
  const auto ids = prompt["ids"].get<std::vector<uint32_t>>();
  auto fed = Prefill(chain, ids);
  ASSERT_TRUE(fed.ok()) << fed.status();
  if (exact) CheckTop(fed->logits, prompt["top10"]);
  std::vector<uint32_t> got;
  while (got.size() < StepsOf(prompt)) {
    got.push_back(Greedy(fed->logits));
    fed = chain.Feed({got.back()});
    ASSERT_TRUE(fed.ok()) << fed.status();
  }
  EXPECT_EQ(got, FirstIds(prompt, StepsOf(prompt)));
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
  // The default numerics and KV type on one engine and on two, then the reference's precision on
  // three.
  for (const uint32_t stages : {1u, 2u, 3u}) {
    SCOPED_TRACE(::testing::Message() << stages << " engines");
    const bool exact = stages == 3;
    EngineOptions options;
    if (exact) options = {.numerics = kExactNumerics, .kv_dtype = KvDtype::kF32};
    auto chain = EngineChain::Make(**model, CutsOf(layers, stages), options);
    if (!chain.ok()) {
      ADD_FAILURE() << chain.status();
      return 0;
    }
    for (const json& prompt : expected["prompts"]) {
      SCOPED_TRACE(prompt["name"].get<std::string>());
      CheckPrompt(*chain, prompt, exact);
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
