// The engine against the reference implementation: hidden states after every layer, logits, greedy
// ids; whole and split at every layer boundary; in one piece, in pieces, one token at a time, and
// stateless.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_data.h"
#include "tests/unit/engine/engine_chain.h"
#include "tests/unit/engine/reference_data.h"
#include "tests/unit/engine/test_engines.h"

namespace kvmesh::shard {
namespace {

using nlohmann::json;
using testing::FolderIsAbsent;
using testing::ListFolder;
using testing::TestDataRoot;

constexpr size_t kGreedyIds = 32;

std::unique_ptr<model::Model> OpenModel(const std::filesystem::path& path) {
  auto model = model::Model::Open(path);
  EXPECT_TRUE(model.ok()) << path << ": " << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// Whole, and cut at every layer boundary.
std::vector<std::vector<uint32_t>> AllSplits(uint32_t layers) {
  std::vector<std::vector<uint32_t>> splits = {{}};
  for (uint32_t cut = 1; cut < layers; ++cut) splits.push_back({cut});
  return splits;
}

// One engine for each layer.
std::vector<uint32_t> EveryCut(uint32_t layers) {
  std::vector<uint32_t> cuts;
  for (uint32_t cut = 1; cut < layers; ++cut) cuts.push_back(cut);
  return cuts;
}

void CheckGreedyIds(EngineChain& chain, const json& prompts) {
  for (const json& prompt : prompts) {
    const auto ids = GreedyIds(chain, prompt["ids"], kGreedyIds);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, prompt["greedy_ids"].get<std::vector<uint32_t>>());
  }
}

// The logits of every row of `fed`, from the tail's head.
void CheckLogitsOfAllRows(EngineChain& chain, const FedRows& fed, const std::vector<float>& want,
                          double tolerance) {
  const model::ModelConfig& config = chain.tail().info().config;
  const size_t rows = want.size() / config.vocab_size;
  const std::vector<float>& hidden = fed.stage_hidden.back();
  ASSERT_EQ(hidden.size(), rows * config.hidden_size);
  for (size_t row = 0; row < rows; ++row) {
    const auto logits = chain.tail().Logits(Row(hidden, row, config.hidden_size));
    ASSERT_TRUE(logits.ok()) << logits.status();
    EXPECT_LE(MaxAbsDiff(*logits, Row(want, row, config.vocab_size)), tolerance) << "row " << row;
  }
  EXPECT_LE(MaxAbsDiff(fed.logits, Row(want, rows - 1, config.vocab_size)), tolerance);
}

// Prompts 0 to 2: the logits of every position.
void CheckPromptLogits(EngineChain& chain, const ReferenceTensors& reference, double tolerance) {
  for (int prompt = 0; prompt < 3; ++prompt) {
    SCOPED_TRACE(absl::StrCat("prompt ", prompt));
    const std::string name = absl::StrCat("p", prompt);
    chain.NewSession();
    const auto fed = chain.Feed(reference.Ids(name + ".ids"));
    ASSERT_TRUE(fed.ok()) << fed.status();
    CheckLogitsOfAllRows(chain, *fed, reference.Floats(name + ".logits"), tolerance);
  }
}

void CheckHiddenOfEveryLayer(const model::Model& model, const EngineOptions& options,
                             const ReferenceTensors& reference, const json& expected) {
  auto chain = EngineChain::Make(model, EveryCut(model.config().layer_count), options);
  ASSERT_TRUE(chain.ok()) << chain.status();
  const auto fed = chain->Feed(reference.Ids("p2.ids"));
  ASSERT_TRUE(fed.ok()) << fed.status();
  const json& rounding = expected["prompts"][2]["f32_vs_f64_max_abs_hidden_diff"];
  for (uint32_t layer = 0; layer < model.config().layer_count; ++layer) {
    const std::string point = absl::StrCat("layer", layer);
    const double tolerance = std::max(1e-4, 20 * rounding[point].get<double>());
    const std::vector<float> want = reference.Floats("p2.hidden." + point);
    ASSERT_LE(MaxAbsDiff(fed->stage_hidden[layer], want), tolerance) << point;
  }
}

// 16 + 16 + 5 tokens leave what 37 at once leave.
void CheckPieces(EngineChain& chain, const ReferenceTensors& reference, double tolerance) {
  const std::vector<uint32_t> ids = reference.Ids("p2.ids");
  const std::vector<float> want = reference.Floats("p2.logits");
  const size_t vocab = chain.tail().info().config.vocab_size;
  chain.NewSession();
  for (const auto& [begin, end] : {std::pair{0, 16}, {16, 32}, {32, 37}}) {
    const auto fed = chain.Feed({ids.begin() + begin, ids.begin() + end});
    ASSERT_TRUE(fed.ok()) << fed.status();
    EXPECT_LE(MaxAbsDiff(fed->logits, Row(want, end - 1, vocab)), tolerance) << "up to " << end;
  }
}

// Logits at positions 36.. of the teacher's ids: one token at a time behind the cached prompt, and
// in one stateless pass.
void CheckTeacher(EngineChain& chain, const ReferenceTensors& reference, double tolerance) {
  const std::vector<uint32_t> ids = reference.Ids("teacher.ids");
  const std::vector<float> want = reference.Floats("teacher.logits");
  const size_t vocab = chain.tail().info().config.vocab_size;
  const size_t rows = want.size() / vocab;
  const size_t prompt = ids.size() - rows + 1;
  chain.NewSession();
  auto fed = chain.Feed({ids.begin(), ids.begin() + static_cast<ptrdiff_t>(prompt)});
  for (size_t row = 0; row < rows; ++row) {
    ASSERT_TRUE(fed.ok()) << fed.status();
    EXPECT_LE(MaxAbsDiff(fed->logits, Row(want, row, vocab)), tolerance) << "cached, row " << row;
    if (row + 1 < rows) fed = chain.Feed({ids[prompt + row]});
  }
  const auto whole = chain.FeedStateless(ids);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_LE(MaxAbsDiff(whole->logits, Row(want, rows - 1, vocab)), tolerance) << "stateless";
}

// The reference's own precision: neither activations nor keys and values are rounded.
std::vector<EngineOptions> ExactEngines() {
  std::vector<EngineOptions> engines;
  for (const std::string& numerics : TestNumerics()) {
    if (numerics == "fma32" || numerics == "torch") {
      engines.push_back({.numerics = numerics, .kv_dtype = KvDtype::kF32});
    }
  }
  return engines;
}

// Ids with the default KV type under every numerics id, up to the first near tie: a margin that
// rounding may turn. To first order each layer adds to the residual stream with a relative error of
// 2^-11 for its keys, 2^-11 for its values (f16), and 2^-15 for each of its seven products (16-bit
// activations); errors of all layers add up at worst, relative to the largest logit, and two logits
// may move towards one another.
void CheckIdsBesideNearTies(const model::Model& model, const json& prompts) {
  const double error = model.config().layer_count * (2 * 0x1p-11 + 7 * 0x1p-15);
  for (const std::string& numerics : TestNumerics()) {
    auto chain = EngineChain::Make(model, {}, {.numerics = numerics});
    ASSERT_TRUE(chain.ok()) << chain.status();
    for (const json& prompt : prompts) {
      const double tolerance = 2 * error * prompt["max_abs_logit"].get<double>();
      const auto margins = prompt["margins"].get<std::vector<double>>();
      const auto near_tie = std::find_if(margins.begin(), margins.end(),
                                         [&](double margin) { return margin <= tolerance; });
      auto want = prompt["greedy_ids"].get<std::vector<uint32_t>>();
      want.resize(std::min<size_t>(want.size(), static_cast<size_t>(near_tie - margins.begin())));
      const auto ids = GreedyIds(*chain, prompt["ids"], want.size());
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, want) << numerics << ", margins above " << tolerance;
    }
  }
}

void CheckModelFolder(const std::filesystem::path& folder) {
  const json expected = ReadJson(folder / "expected.json");
  if (!ArchitectureIsSupported(expected["architecture"])) {
    ExpectRefusedByName(folder, {expected["architecture"], expected["model_type"]});
    return;
  }
  const std::unique_ptr<model::Model> model = OpenModel(folder);
  if (model == nullptr) return;
  const ReferenceTensors reference(folder / "expected.safetensors");
  const double tolerance = expected["recommended_tolerance"]["logits_max_abs"];
  CheckIdsBesideNearTies(*model, expected["prompts"]);
  for (const EngineOptions& options : ExactEngines()) {
    SCOPED_TRACE(options.numerics);
    CheckHiddenOfEveryLayer(*model, options, reference, expected);
    for (const std::vector<uint32_t>& cuts : AllSplits(model->config().layer_count)) {
      SCOPED_TRACE(cuts.empty() ? "whole" : absl::StrCat("cut at ", cuts[0]));
      auto chain = EngineChain::Make(*model, cuts, options);
      ASSERT_TRUE(chain.ok()) << chain.status();
      CheckPromptLogits(*chain, reference, tolerance);
      CheckPieces(*chain, reference, tolerance);
      CheckTeacher(*chain, reference, tolerance);
      CheckGreedyIds(*chain, expected["prompts"]);
    }
  }
}

TEST(EngineGolden, HuggingFaceModels) {
  const std::filesystem::path root = TestDataRoot() / "models";
  if (FolderIsAbsent(root)) return;
  size_t cases = 0;
  for (const auto& folder : ListFolder(root)) {
    if (!std::filesystem::is_directory(folder)) continue;
    SCOPED_TRACE(folder.string());
    CheckModelFolder(folder);
    ++cases;
  }
  std::printf("%zu cases ran\n", cases);
  EXPECT_GT(cases, 0u);
}

void CheckGgufModel(const std::filesystem::path& path, const json& expected) {
  if (!ArchitectureIsSupported(expected["architecture"])) {
    ExpectRefusedByName(path, {expected["architecture"]});
    return;
  }
  const std::unique_ptr<model::Model> model = OpenModel(path);
  if (model == nullptr) return;
  std::filesystem::path tensors = path;
  const ReferenceTensors reference(tensors.replace_extension("expected.safetensors"));
  const double tolerance = expected["recommended_tolerance"]["logits_max_abs"];
  CheckIdsBesideNearTies(*model, expected["prompts"]);
  for (const EngineOptions& options : ExactEngines()) {
    SCOPED_TRACE(options.numerics);
    for (const std::vector<uint32_t>& cuts : AllSplits(model->config().layer_count)) {
      SCOPED_TRACE(cuts.empty() ? "whole" : absl::StrCat("cut at ", cuts[0]));
      auto chain = EngineChain::Make(*model, cuts, options);
      ASSERT_TRUE(chain.ok()) << chain.status();
      CheckPromptLogits(*chain, reference, tolerance);
      CheckPieces(*chain, reference, tolerance);
      CheckGreedyIds(*chain, expected["prompts"]);
    }
  }
}

TEST(EngineGolden, GgufModels) {
  const std::filesystem::path root = TestDataRoot() / "gguf";
  if (FolderIsAbsent(root)) return;
  size_t cases = 0;
  for (const auto& path : ListFolder(root)) {
    if (path.extension() != ".gguf") continue;
    std::filesystem::path expected_path = path;
    const json expected = ReadJson(expected_path.replace_extension("expected.json"));
    if (!expected.contains("prompts")) continue;  // blocks, not a model
    SCOPED_TRACE(path.string());
    CheckGgufModel(path, expected);
    ++cases;
  }
  std::printf("%zu cases ran\n", cases);
  EXPECT_GT(cases, 0u);
}

// Those that load in spite of oddities also compute what they should.
TEST(EngineGolden, ModelsThatLoadInSpiteOfOddities) {
  const std::filesystem::path root = TestDataRoot() / "models_bad";
  if (FolderIsAbsent(root)) return;
  size_t cases = 0;
  const json expected = ReadJson(root / "expected.json");
  for (const auto& [name, want] : expected["files"].items()) {
    if (want["must_be_refused"].get<bool>()) continue;
    SCOPED_TRACE(name);
    const std::unique_ptr<model::Model> model = OpenModel(root / name);
    if (model == nullptr) continue;
    for (const EngineOptions& options : ExactEngines()) {
      auto chain = EngineChain::Make(*model, {}, options);
      ASSERT_TRUE(chain.ok()) << chain.status();
      const auto want_ids = want["greedy_ids"].get<std::vector<uint32_t>>();
      const auto ids = GreedyIds(*chain, want["ids"], want_ids.size());
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, want_ids) << options.numerics;
    }
    ++cases;
  }
  std::printf("%zu cases ran\n", cases);
  EXPECT_GT(cases, 0u);
}

}  // namespace
}  // namespace kvmesh::shard
