// Whole models on disk: which tensors they must have, and what a shard is told about them.
#include "common/model/model.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/model/model_builder.h"

namespace kvmesh::model {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

absl::StatusOr<std::unique_ptr<Model>> OpenFolder(const TempFolder& folder,
                                                  const TinyFolder& model) {
  return Model::Open(folder.WriteModel(model));
}

void ExpectRefused(const absl::Status& status, absl::StatusCode code, absl::string_view word) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), word)) << status;
}

TEST(StageRange, EarlierStagesTakeTheRemainderAndTogetherCoverAllLayersOnce) {
  EXPECT_EQ(*StageRange(0, 3, 8), (LayerRange{0, 3}));
  EXPECT_EQ(*StageRange(1, 3, 8), (LayerRange{3, 6}));
  EXPECT_EQ(*StageRange(2, 3, 8), (LayerRange{6, 8}));
  for (uint32_t layers = 1; layers <= 40; ++layers) {
    for (uint32_t stages = 1; stages <= layers; ++stages) {
      uint32_t next = 0;
      for (uint32_t stage = 0; stage < stages; ++stage) {
        const LayerRange range = *StageRange(stage, stages, layers);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.end - range.begin, layers / stages);
        EXPECT_LE(range.end - range.begin, layers / stages + 1);
        next = range.end;
      }
      EXPECT_EQ(next, layers);
    }
  }
}

TEST(StageRange, StagesThatDoNotExistOrWouldBeEmptyAreRefused) {
  EXPECT_EQ(StageRange(0, 0, 4).status().code(), kInvalid);
  EXPECT_EQ(StageRange(2, 2, 4).status().code(), kInvalid);
  EXPECT_EQ(StageRange(0, 5, 4).status().code(), kInvalid);
  EXPECT_TRUE(StageRange(3, 4, 4).ok());
}

TEST(Model, TensorsAreFoundByRoleInBothFormats) {
  const TempFolder folder;
  const auto from_folder = OpenFolder(folder, TinyLlama());
  ASSERT_TRUE(from_folder.ok()) << from_folder.status();
  const auto q = (*from_folder)->Find(WeightRole::kAttnQ, 1);
  ASSERT_TRUE(q.ok());
  EXPECT_EQ(q->name, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(q->shape, (std::vector<uint64_t>{16, 16}));
  EXPECT_EQ(q->row_bytes(), 64u);
  EXPECT_EQ(q->data[0], 'm');
  EXPECT_FALSE(q->rope_interleaved);
  EXPECT_EQ((*from_folder)->Find(WeightRole::kAttnQ, 2).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ((*from_folder)->Find(WeightRole::kAttnQBias, 0).status().code(),
            absl::StatusCode::kNotFound);

  const auto gguf = Model::Open(folder.Write("m.gguf", TinyGguf().Bytes()));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_TRUE((*gguf)->Find(WeightRole::kAttnK, 0)->rope_interleaved);
  EXPECT_FALSE((*gguf)->Find(WeightRole::kAttnV, 0)->rope_interleaved);
  EXPECT_EQ((*gguf)->Find(WeightRole::kFfnDown, 1)->shape, (std::vector<uint64_t>{16, 24}));
}

TEST(Model, ATiedOutputIsTheEmbeddingAndCountsOnce) {
  const TempFolder folder;
  TinyFolder model = TinyLlama();
  const uint64_t untied = (*OpenFolder(folder, model))->WeightBytes({0, 2});
  model.config["tie_word_embeddings"] = true;
  model.tensors.erase("lm_head.weight");
  const auto tied = OpenFolder(folder, model);
  ASSERT_TRUE(tied.ok()) << tied.status();
  EXPECT_EQ((*tied)->Find(WeightRole::kOutput)->name, "model.embed_tokens.weight");
  const uint64_t matrix = 8 * 16 * sizeof(float);
  EXPECT_EQ((*tied)->WeightBytes({0, 2}), untied - matrix);
  EXPECT_EQ((*tied)->WeightBytes({0, 1}) + (*tied)->WeightBytes({1, 2}), untied);
}

TEST(Model, ATieFlagGivesWayToAnOutputMatrixInTheFiles) {
  const TempFolder folder;
  TinyFolder model = TinyLlama();
  model.config["tie_word_embeddings"] = true;
  const auto opened = OpenFolder(folder, model);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_FALSE((*opened)->config().tied_embedding);
  EXPECT_EQ((*opened)->Find(WeightRole::kOutput)->name, "lm_head.weight");
}

TEST(Model, TypesAreListedByTheirBytes) {
  const TempFolder folder;
  TinyFolder model = TinyLlama();
  EXPECT_EQ((*OpenFolder(folder, model))->weight_types(), "f32");
  for (auto& [name, tensor] : model.tensors) {
    if (name != "lm_head.weight") tensor.dtype = "BF16";
  }
  EXPECT_EQ((*OpenFolder(folder, model))->weight_types(), "bf16+f32");
}

TEST(Model, EachMissingTensorIsNamed) {
  const TempFolder folder;
  for (const auto& [name, tensor] : TinyQwen2().tensors) {
    TinyFolder model = TinyQwen2();
    model.tensors.erase(name);
    ExpectRefused(OpenFolder(folder, model).status(), kInvalid, name);
  }
}

TEST(Model, EachTensorOfAnotherShapeIsNamed) {
  const TempFolder folder;
  for (const auto& [name, tensor] : TinyQwen2().tensors) {
    TinyFolder model = TinyQwen2();
    model.tensors[name].shape.back() += 1;
    ExpectRefused(OpenFolder(folder, model).status(), kInvalid, name);
    model.tensors[name].shape = {1, 2, 3, 4};
    ExpectRefused(OpenFolder(folder, model).status(), kInvalid, name);
  }
  TinyFolder transposed = TinyLlama();
  transposed.tensors["model.layers.0.mlp.up_proj.weight"].shape = {16, 24};
  ExpectRefused(OpenFolder(folder, transposed).status(), kInvalid, "up_proj");
}

TEST(Model, TensorsWithoutAPlaceAreRefusedExceptOldRopeTables) {
  const TempFolder folder;
  TinyFolder model = TinyLlama();
  model.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", {2}};
  EXPECT_TRUE(OpenFolder(folder, model).ok());
  for (const char* name :
       {"model.layers.0.self_attn.q_norm.weight", "model.layers.2.mlp.up_proj.weight",
        "model.layers.0.mlp.up_proj.bias"}) {
    TinyFolder other = TinyLlama();
    other.tensors[name] = {"F32", {4}};
    ExpectRefused(OpenFolder(folder, other).status(), kInvalid, name);
  }
}

TEST(Model, WeightsOfATypeThatIsNotSupportedAreNamed) {
  const TempFolder folder;
  TinyFolder model = TinyLlama();
  model.tensors["model.norm.weight"].dtype = "I64";
  ExpectRefused(OpenFolder(folder, model).status(), kUnsupported, "model.norm.weight");
}

TEST(Model, AQuantisedNormIsRefused) {
  const TempFolder folder;
  GgufBuilder builder = TinyGguf();
  builder.SetUint32("llama.embedding_length", 32)
      .SetUint32("llama.attention.key_length", 4)
      .SetUint32("llama.attention.value_length", 4);
  builder.tensors()["output_norm.weight"] = {.ne = {32}, .type = 8, .data = std::string(34, '\0')};
  builder.AddTensor("token_embd.weight", {32, 8});
  ExpectRefused(Model::Open(folder.Write("m.gguf", builder.Bytes())).status(), kUnsupported,
                "output_norm.weight");
}

TEST(Model, AModelInSeveralFilesIsReadByItsIndexAndStrayFilesAreIgnored) {
  const TempFolder folder;
  const TinyFolder model = TinyLlama();
  std::map<std::string, SafetensorsSpec> parts[2];
  nlohmann::json map;
  for (const auto& [name, tensor] : model.tensors) {
    const int part = map.size() % 2;
    parts[part][name] = tensor;
    map[name] = absl::StrCat("part-", part, ".safetensors");
  }
  folder.Write("config.json", model.config.dump());
  folder.Write("part-0.safetensors", SafetensorsBytes(parts[0]));
  folder.Write("part-1.safetensors", SafetensorsBytes(parts[1]));
  folder.Write("model.safetensors", "stray");
  folder.Write("model.safetensors.index.json",
               nlohmann::json({{"metadata", {{"total_size", 1}}}, {"weight_map", map}}).dump());
  const auto opened = Model::Open(folder.path().string());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->Find(WeightRole::kOutputNorm)->data[6], 'n');  // "model.norm.weight"
  std::filesystem::remove(folder.path() / "part-1.safetensors");
  ExpectRefused(Model::Open(folder.path().string()).status(), kInvalid, "part-1.safetensors");
}

// As the cache of Hugging Face's own tools keeps them; only names in an index must not lead
// outside.
TEST(Model, AFolderOfLinksToFilesElsewhereIsAModel) {
  const TempFolder blobs;
  const TempFolder folder;
  const TinyFolder model = TinyLlama();
  std::filesystem::create_symlink(blobs.Write("1f2e", model.config.dump()),
                                  folder.path() / "config.json");
  std::filesystem::create_symlink(blobs.Write("3d4c", SafetensorsBytes(model.tensors)),
                                  folder.path() / "model.safetensors");
  const auto opened = Model::Open(folder.path().string());
  EXPECT_TRUE(opened.ok()) << opened.status();
}

TEST(Model, WhatIsNoModelIsCalledByItsName) {
  const TempFolder folder;
  EXPECT_EQ(Model::Open((folder.path() / "absent").string()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Model::Open(folder.path().string()).status().code(), absl::StatusCode::kNotFound);
  folder.Write("adapter_config.json", "{}");
  ExpectRefused(Model::Open(folder.path().string()).status(), kInvalid, "adapter");
  folder.Write("config.json", TinyLlama().config.dump());
  folder.Write("pytorch_model.bin", "\x80\x02");
  ExpectRefused(Model::Open(folder.path().string()).status(), kInvalid, "pickle");
  folder.Write("model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  ExpectRefused(Model::Open(folder.path().string()).status(), kInvalid, "Git LFS");
  ExpectRefused(Model::Open("/dev/null").status(), kInvalid, "regular");
  ExpectRefused(Model::Open(std::string("a\0b", 3)).status(), kInvalid, "NUL");
}

}  // namespace
}  // namespace kvmesh::model
