// One row has the same bits however it is run: for every numerics id, every weight type, and every
// model of the fixtures. No tolerance anywhere in this file.
#include "tests/unit/engine/bit_equality.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/model/mapped_file.h"
#include "gtest/gtest.h"
#include "services/shard/engine/numerics.h"
#include "tests/testing/test_data.h"
#include "tests/unit/engine/kernels/weight_testing.h"
#include "tests/unit/engine/test_engines.h"

namespace kvmesh::shard {
namespace {

constexpr size_t kTokens = 150;  // over two blocks of keys

std::vector<std::string> OwnNumerics() {
  std::vector<std::string> ids;
  for (const Numerics& numerics : NumericsOfThisMachine()) ids.push_back(numerics.id);
  return ids;
}

std::unique_ptr<model::Model> OpenFixture(const std::string& name) {
  auto model = model::Model::Open(testing::TestDataRoot() / name);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

class BitEqualityOfModel
    : public ::testing::TestWithParam<std::tuple<std::string, const char*, KvDtype>> {};

TEST_P(BitEqualityOfModel, ARowHasTheSameBitsEveryWay) {
  const auto& [numerics, name, kv_dtype] = GetParam();
  const auto model = OpenFixture(name);
  ASSERT_NE(model, nullptr);
  ExpectSameBitsEveryWay(*model, {.numerics = numerics, .kv_dtype = kv_dtype},
                         SomeTokens(kTokens, 3, model->config().vocab_size));
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, BitEqualityOfModel,
    ::testing::Combine(::testing::ValuesIn(OwnNumerics()),
                       ::testing::Values("models/llama-tied", "models/llama-256-bf16",
                                         "models/qwen2-tied", "models/qwen2-256-f16",
                                         "gguf/llama-rope3.f32.gguf", "gguf/llama-256.q3_k_m.gguf",
                                         "gguf/qwen2-256.q5_k_m.gguf"),
                       ::testing::Values(KvDtype::kF16)));
INSTANTIATE_TEST_SUITE_P(KvTypes, BitEqualityOfModel,
                         ::testing::Combine(::testing::ValuesIn(OwnNumerics()),
                                            ::testing::Values("models/llama-256-bf16"),
                                            ::testing::Values(KvDtype::kBF16, KvDtype::kF32)));

// A model whose matrices have another type, where their rows are whole blocks of it: its shapes,
// and any weights.
class RetypedModel final : public model::Model {
 public:
  RetypedModel(std::unique_ptr<model::Model> model, model::WeightType type)
      : model_(std::move(model)), type_(type) {
    using model::WeightRole;
    for (const WeightRole role :
         {WeightRole::kAttnQ, WeightRole::kAttnK, WeightRole::kAttnV, WeightRole::kAttnO,
          WeightRole::kFfnGate, WeightRole::kFfnUp, WeightRole::kFfnDown}) {
      for (uint32_t layer = 0; layer < config().layer_count; ++layer) Retype(role, layer);
    }
    Retype(WeightRole::kOutput, 0);
  }

  const model::ModelConfig& config() const override { return model_->config(); }
  absl::StatusOr<model::Tensor> Find(model::WeightRole role, uint32_t layer) const override {
    for (const Retyped& retyped : retyped_) {
      if (retyped.role == role && retyped.layer == layer) return retyped.tensor;
    }
    return model_->Find(role, layer);
  }
  void ReleasePages(const model::Tensor&) const override {}  // few: they may stay
  uint64_t WeightBytes(LayerRange range) const override { return model_->WeightBytes(range); }
  std::string weight_types() const override { return std::string(model::InfoOf(type_).name); }
  absl::StatusOr<model::ModelDigests> Digests(LayerRange range) const override {
    return model_->Digests(range);
  }
  const std::string& path() const override { return model_->path(); }

 private:
  struct Retyped {
    model::WeightRole role;
    uint32_t layer;
    model::Tensor tensor;
    std::unique_ptr<model::MappedFile> file;
  };

  void Retype(model::WeightRole role, uint32_t layer) {
    const auto tensor = model_->Find(role, layer);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    if (tensor->shape[1] % model::InfoOf(type_).block_size != 0) return;
    const auto seed = static_cast<uint32_t>(static_cast<uint32_t>(role) * 100 + layer);
    const TestWeights weights(type_, tensor->shape[0], tensor->shape[1], seed);
    // In a file, as a loader expects of a model; it is gone when it is unmapped.
    const std::string path = ::testing::TempDir() + "retyped-" + std::to_string(getpid());
    const auto bytes = weights.tensor().data;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    auto file = model::MappedFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    std::filesystem::remove(path);
    model::Tensor retyped = weights.tensor();
    retyped.data = (*file)->bytes();
    retyped_.push_back({role, layer, std::move(retyped), *std::move(file)});
  }

  std::unique_ptr<model::Model> model_;
  model::WeightType type_;
  std::vector<Retyped> retyped_;
};

class BitEqualityOfType
    : public ::testing::TestWithParam<std::tuple<std::string, model::WeightType>> {};

TEST_P(BitEqualityOfType, ARowHasTheSameBitsEveryWay) {
  const auto& [numerics, type] = GetParam();
  auto fixture = OpenFixture("models/llama-256-bf16");
  ASSERT_NE(fixture, nullptr);
  const RetypedModel model(std::move(fixture), type);
  ExpectSameBitsEveryWay(model, {.numerics = numerics},
                         SomeTokens(70, 5, model.config().vocab_size));
}

INSTANTIATE_TEST_SUITE_P(Types, BitEqualityOfType,
                         ::testing::Combine(::testing::ValuesIn(OwnNumerics()),
                                            ::testing::ValuesIn(AllWeightTypes())));

// Sets of instructions that share an id share all bits.
TEST(BitEquality, SetsOfInstructionsWithOneIdGiveTheSameBits) {
  const auto model = OpenFixture("models/qwen2-256-f16");
  ASSERT_NE(model, nullptr);
  const auto tokens = SomeTokens(kTokens, 3, model->config().vocab_size);
  size_t forced = 0;
  for (const std::string& id : OwnNumerics()) {
    auto chain = EngineChain::Make(*model, {}, {.numerics = id});
    ASSERT_TRUE(chain.ok()) << chain.status();
    const auto want = RunInPieces(*chain, tokens, 60);
    ASSERT_TRUE(want.ok()) << want.status();
    for (const InstructionSet set : kInstructionSets) {
      const std::string name = id + ":" + std::string(NameOf(set));
      if (!NumericsNamed(name).ok()) continue;
      auto other = EngineChain::Make(*model, {}, {.numerics = name});
      ASSERT_TRUE(other.ok()) << other.status();
      EXPECT_EQ(other->tail().info().numerics_id, id);
      const auto got = RunInPieces(*other, tokens, 60);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(FirstDifference(*got, *want), "") << name;
      ++forced;
    }
  }
  EXPECT_GT(forced, 0u);
}

// The comparison itself tells a changed bit.
TEST(BitEquality, ADifferenceIsFound) {
  SequenceBits bits{.hidden = {1, 2, 3, 4}, .logits = {{}, {5, 0.0f}}};
  SequenceBits other = bits;
  EXPECT_EQ(FirstDifference(bits, other), "");
  other.logits[1][1] = -0.0f;
  EXPECT_EQ(FirstDifference(bits, other), "the logits of position 1");
  other.hidden[1] = 2.0000002f;
  EXPECT_EQ(FirstDifference(bits, other), "the hidden row of position 0");
  other.hidden.pop_back();
  EXPECT_EQ(FirstDifference(bits, other), "another number of rows");
}

}  // namespace
}  // namespace kvmesh::shard
