// What config.json and GGUF metadata may say: each key missing, of the wrong type, out of range,
// contradictory.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/model/gguf_config.h"
#include "common/model/hf_config.h"
#include "tests/unit/model/model_builder.h"

namespace kvmesh::model {
namespace {

using Json = nlohmann::json;

absl::StatusOr<ModelConfig> FromJson(const Json& config) {
  return ConfigFromHuggingFace(config.dump(), std::nullopt);
}

absl::StatusOr<ModelConfig> With(TinyFolder model, const std::string& key, const Json& value) {
  model.config[key] = value;
  return FromJson(model.config);
}

absl::StatusOr<ModelConfig> LlamaWith(const std::string& key, const Json& value) {
  return With(TinyLlama(), key, value);
}

void ExpectRefused(const absl::StatusOr<ModelConfig>& config, absl::StatusCode code,
                   absl::string_view word) {
  EXPECT_EQ(config.status().code(), code) << config.status();
  EXPECT_TRUE(absl::StrContains(config.status().message(), word)) << config.status();
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

TEST(HuggingFaceConfig, ASoundOneIsReadWhole) {
  const auto config = FromJson(TinyLlama().config);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layer_count, 2u);
  EXPECT_EQ(config->head_dim, 4u);
  EXPECT_EQ(config->rope.dims, 4u);
  EXPECT_EQ(config->rope.theta, 10000.0);
  EXPECT_EQ(config->eos_token_ids, std::vector<uint32_t>{2});
  EXPECT_EQ(config->bos_token_id, 1u);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_EQ(config->layer_kinds.size(), 2u);
  EXPECT_TRUE(FromJson(TinyQwen2().config)->qkv_bias);
}

TEST(HuggingFaceConfig, EachNeededKeyIsNamedWhenItIsMissing) {
  for (const char* key :
       {"model_type", "num_hidden_layers", "hidden_size", "intermediate_size",
        "num_attention_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps"}) {
    TinyFolder model = TinyLlama();
    model.config.erase(key);
    ExpectRefused(FromJson(model.config), kInvalid, key);
  }
}

TEST(HuggingFaceConfig, SizesThatAreNoPlainCountsAreRefusedByKey) {
  const std::vector<Json> bad = {
      "2", 2.5, 2.0, -1, 0, true, Json::array({2}), Json::object(), uint64_t{1000000000000}, 1e30};
  for (const char* key :
       {"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings"}) {
    for (const Json& value : bad) {
      SCOPED_TRACE(absl::StrCat(key, " = ", value.dump()));
      ExpectRefused(LlamaWith(key, value), kInvalid, key);
    }
  }
}

TEST(HuggingFaceConfig, NumbersThatDivideOrScaleMustBeAboveZero) {
  for (const char* key : {"rms_norm_eps", "rope_theta", "partial_rotary_factor"}) {
    for (const Json& value : std::vector<Json>{0, -1.0, "10000", true, Json::array()}) {
      ExpectRefused(LlamaWith(key, value), kInvalid, key);
    }
  }
  ExpectRefused(LlamaWith("partial_rotary_factor", 1.5), kInvalid, "partial_rotary_factor");
  EXPECT_TRUE(LlamaWith("rope_theta", 1000000).ok());
}

TEST(HuggingFaceConfig, HeadsMustBeSharedOutEvenly) {
  ExpectRefused(LlamaWith("num_key_value_heads", 3), kInvalid, "num_key_value_heads");
  ExpectRefused(LlamaWith("num_attention_heads", 5), kInvalid, "num_attention_heads");
  ExpectRefused(LlamaWith("head_dim", 3), kInvalid, "head_dim");
}

TEST(HuggingFaceConfig, HeadDimIsTheKeysElseHiddenOverHeadsAlsoForNull) {
  EXPECT_EQ(LlamaWith("head_dim", 128)->head_dim, 128u);
  EXPECT_EQ(LlamaWith("head_dim", nullptr)->head_dim, 4u);
  EXPECT_EQ(LlamaWith("num_key_value_heads", nullptr)->kv_head_count, 4u);
}

TEST(HuggingFaceConfig, OtherFamiliesAreRefusedByName) {
  for (const char* family : {"qwen3", "qwen3_moe", "gemma3_text", "qwen3_next", "qwen3_5_text",
                             "mistral", "phi3", "zephyrix", ""}) {
    ExpectRefused(LlamaWith("model_type", family), kUnsupported, family);
  }
  ExpectRefused(LlamaWith("architectures", {"LlamaForSequenceClassification"}), kUnsupported,
                "LlamaForSequenceClassification");
  ExpectRefused(LlamaWith("model_type", 7), kInvalid, "model_type");
  ExpectRefused(LlamaWith("architectures", "LlamaForCausalLM"), kInvalid, "architectures");
}

TEST(HuggingFaceConfig, WhatChangesTheArithmeticIsRefusedByName) {
  ExpectRefused(LlamaWith("hidden_act", "gelu"), kUnsupported, "gelu");
  ExpectRefused(LlamaWith("hidden_act", 1), kInvalid, "hidden_act");
  ExpectRefused(LlamaWith("attention_bias", true), kUnsupported, "attention_bias");
  ExpectRefused(LlamaWith("mlp_bias", true), kUnsupported, "mlp_bias");
  ExpectRefused(LlamaWith("quantization_config", {{"bits", 4}}), kUnsupported,
                "quantization_config");
  EXPECT_TRUE(LlamaWith("quantization_config", nullptr).ok());
  EXPECT_TRUE(LlamaWith("torch_dtype", "float64").ok());
  EXPECT_TRUE(LlamaWith("some_new_key", {{"a", 1}}).ok());
}

TEST(HuggingFaceConfig, LayerTypesMustFitTheLayersAndBeFullAttention) {
  EXPECT_TRUE(LlamaWith("layer_types", {"full_attention", "full_attention"}).ok());
  ExpectRefused(LlamaWith("layer_types", {"full_attention"}), kInvalid, "layer_types");
  ExpectRefused(LlamaWith("layer_types", {"full_attention", "spiral"}), kUnsupported, "spiral");
  ExpectRefused(LlamaWith("layer_types", {"full_attention", 1}), kInvalid, "layer_types");
  ExpectRefused(LlamaWith("layer_types", "full_attention"), kInvalid, "layer_types");
}

TEST(HuggingFaceConfig, AWindowIsRefusedOnlyWhenItIsInUse) {
  TinyFolder model = TinyQwen2();
  model.config["sliding_window"] = 32;
  model.config["use_sliding_window"] = false;
  EXPECT_TRUE(FromJson(model.config).ok());
  model.config["use_sliding_window"] = true;
  ExpectRefused(FromJson(model.config), kUnsupported, "use_sliding_window");
}

TEST(HuggingFaceConfig, EndIdsAreOneNumberOrAListBelowTheVocabulary) {
  EXPECT_EQ(LlamaWith("eos_token_id", {7, 3, 7})->eos_token_ids, (std::vector<uint32_t>{3, 7}));
  EXPECT_TRUE(LlamaWith("eos_token_id", nullptr)->eos_token_ids.empty());
  for (const Json& value :
       std::vector<Json>{8, -1, "2", 2.0, Json::array({1, "2"}), Json::array({8}), true}) {
    ExpectRefused(LlamaWith("eos_token_id", value), kInvalid, "eos_token_id");
  }
  ExpectRefused(LlamaWith("bos_token_id", 8), kInvalid, "bos_token_id");
}

TEST(HuggingFaceConfig, GenerationConfigWinsWhereItNamesEndIds) {
  const std::string config = TinyLlama().config.dump();
  EXPECT_EQ(ConfigFromHuggingFace(config, R"({"eos_token_id":[5,4]})")->eos_token_ids,
            (std::vector<uint32_t>{4, 5}));
  EXPECT_EQ(ConfigFromHuggingFace(config, "{}")->eos_token_ids, std::vector<uint32_t>{2});
  for (const char* bad : {"", "[]", R"({"eos_token_id":"x"})"}) {
    ExpectRefused(ConfigFromHuggingFace(config, bad), kInvalid, "generation_config.json");
  }
}

TEST(HuggingFaceConfig, WhatIsNoObjectIsRefusedByFile) {
  for (const char* bad : {"", "[]", "1", "\"\"", "null", "{", "\xff\xfe{}", "{} {}"}) {
    ExpectRefused(ConfigFromHuggingFace(bad, std::nullopt), kInvalid, "config.json");
  }
  ExpectRefused(ConfigFromHuggingFace(std::string(100000, '['), std::nullopt), kInvalid,
                "config.json");
}

TEST(RopeSpelling, AllSpellingsOfTheSameScalingGiveTheSameRope) {
  const Json scaling = {{"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  for (const std::string spelling : {"rope_type", "type", "both", "rope_parameters"}) {
    SCOPED_TRACE(spelling);
    TinyFolder model = TinyLlama();
    model.config.erase("rope_theta");
    Json block = scaling;
    if (spelling != "type") block["rope_type"] = "llama3";
    if (spelling == "type" || spelling == "both") block["type"] = "llama3";
    if (spelling == "rope_parameters") {
      block["rope_theta"] = 50000.0;
      model.config["rope_parameters"] = block;
    } else {
      model.config["rope_theta"] = 50000.0;
      model.config["rope_scaling"] = block;
    }
    const auto config = FromJson(model.config);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope.theta, 50000.0);
    EXPECT_EQ(config->rope.scaling, RopeScaling::kLlama3);
    EXPECT_EQ(config->rope.factor, 8.0);
    EXPECT_EQ(config->rope.original_context, 64.0);
  }
}

TEST(RopeSpelling, DefaultAndNullAreNoScalingAndTheOuterThetaHoldsWithoutAnInnerOne) {
  EXPECT_EQ(LlamaWith("rope_scaling", nullptr)->rope.scaling, RopeScaling::kNone);
  const auto config = LlamaWith("rope_parameters", {{"rope_type", "default"}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(config->rope.theta, 10000.0);
  const auto linear = LlamaWith("rope_scaling", {{"type", "linear"}, {"factor", 2}});
  EXPECT_EQ(linear->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(linear->rope.factor, 2.0);
}

TEST(RopeSpelling, WhatCannotBeComputedIsRefused) {
  ExpectRefused(LlamaWith("rope_scaling", {{"rope_type", "spiral"}}), kUnsupported, "spiral");
  ExpectRefused(LlamaWith("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}}), kUnsupported,
                "yarn");
  ExpectRefused(LlamaWith("rope_scaling", {{"type", "linear"}}), kInvalid, "factor");
  ExpectRefused(LlamaWith("rope_scaling", {{"type", "linear"}, {"factor", 0}}), kInvalid, "factor");
  ExpectRefused(LlamaWith("rope_scaling", {{"type", "linear"}, {"rope_type", "llama3"}}), kInvalid,
                "rope_type");
  ExpectRefused(LlamaWith("rope_scaling", "linear"), kInvalid, "rope_scaling");
  ExpectRefused(LlamaWith("rope_scaling", {{"type", 3}}), kInvalid, "type");
  ExpectRefused(LlamaWith("rope_scaling", {{"rope_type", "llama3"},
                                           {"factor", 8},
                                           {"low_freq_factor", 4},
                                           {"high_freq_factor", 4},
                                           {"original_max_position_embeddings", 64}}),
                kInvalid, "high_freq_factor");
  ExpectRefused(LlamaWith("rope_parameters", {{"full_attention", {{"rope_theta", 1.0}}}}),
                kUnsupported, "full_attention");
}

absl::StatusOr<ModelConfig> FromGguf(const GgufBuilder& builder) {
  const std::string bytes = builder.Bytes();
  const auto file = GgufFile::Parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  if (!file.ok()) return file.status();
  return ConfigFromGguf(*file);
}

TEST(GgufConfig, ASoundOneIsReadWholeAndAbsentKeysHaveTheFormatsDefaults) {
  GgufBuilder builder = TinyGguf();
  builder.SetUint32("tokenizer.ggml.eot_token_id", 5);
  const auto config = FromGguf(builder);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 4u);
  EXPECT_EQ(config->vocab_size, 8u);
  EXPECT_EQ(config->rope.theta, 10000.0);
  EXPECT_FALSE(config->tied_embedding);
  EXPECT_EQ(config->eos_token_ids, (std::vector<uint32_t>{2, 5}));
  builder.tensors().erase("output.weight");
  EXPECT_TRUE(FromGguf(builder)->tied_embedding);
}

TEST(GgufConfig, CountsThatAreMissingOrNoCountsAreRefusedByKey) {
  for (const char* name : {"block_count", "context_length", "embedding_length",
                           "feed_forward_length", "attention.head_count"}) {
    const std::string key = absl::StrCat("llama.", name);
    ExpectRefused(FromGguf(TinyGguf().Remove(key)), kInvalid, key);
    ExpectRefused(FromGguf(TinyGguf().SetUint32(key, 0)), kInvalid, key);
    ExpectRefused(FromGguf(TinyGguf().SetUint32(key, 4'000'000'000)), kInvalid, key);
    ExpectRefused(FromGguf(TinyGguf().SetString(key, "2")), kInvalid, key);
    ExpectRefused(FromGguf(TinyGguf().SetFloat(key, 2)), kInvalid, key);
    ExpectRefused(FromGguf(TinyGguf().Set(key, GgufValueType::kInt64, Raw<int64_t>(-2))), kInvalid,
                  key);
  }
  for (const char* key : {"llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"}) {
    for (const float value : {0.0f, -1.0f, NAN, INFINITY}) {
      ExpectRefused(FromGguf(TinyGguf().SetFloat(key, value)), kInvalid, key);
    }
  }
}

TEST(GgufConfig, WhatIsNoModelOrAnotherOneIsRefusedByName) {
  ExpectRefused(FromGguf(TinyGguf().SetString("general.architecture", "gemma3")), kUnsupported,
                "gemma3");
  ExpectRefused(FromGguf(TinyGguf().SetString("general.type", "adapter")), kUnsupported, "adapter");
  ExpectRefused(FromGguf(TinyGguf().SetUint32("split.count", 2)), kUnsupported, "split.count");
  ExpectRefused(FromGguf(TinyGguf().SetUint32("llama.expert_count", 8)), kUnsupported,
                "expert_count");
  ExpectRefused(FromGguf(TinyGguf().SetString("llama.rope.scaling.type", "yarn")), kUnsupported,
                "yarn");
  ExpectRefused(FromGguf(TinyGguf().SetUint32("llama.attention.value_length", 8)), kUnsupported,
                "value_length");
  ExpectRefused(FromGguf(TinyGguf().SetUint32("llama.rope.dimension_count", 2)), kUnsupported,
                "dimension_count");
  ExpectRefused(FromGguf(TinyGguf().SetUint32("llama.rope.dimension_count", 3)), kInvalid,
                "dimension_count");
}

TEST(GgufConfig, TheTokenizersListsMustFitOneAnotherAndTheEmbedding) {
  const std::string tokens = "tokenizer.ggml.tokens";
  ExpectRefused(FromGguf(TinyGguf().SetStrings(tokens, std::vector<std::string>(9, "a"))), kInvalid,
                tokens);
  EXPECT_TRUE(FromGguf(TinyGguf().SetStrings(tokens, {"a", "b", "c"})).ok());
  ExpectRefused(FromGguf(TinyGguf().SetUint32(tokens, 8)), kInvalid, tokens);
  ExpectRefused(FromGguf(TinyGguf().SetStrings("tokenizer.ggml.token_type", {"a"})), kInvalid,
                "token_type");
  ExpectRefused(FromGguf(TinyGguf().SetUint32("tokenizer.ggml.eos_token_id", 8)), kInvalid,
                "eos_token_id");
}

TEST(GgufConfig, FrequencyFactorsAreReadAndMustDivide) {
  GgufBuilder builder = TinyGguf();
  builder.AddTensor("rope_freqs.weight", {2});
  ExpectRefused(FromGguf(builder), kInvalid, "rope_freqs.weight");  // zeros
  builder.tensors()["rope_freqs.weight"].data = Raw(1.0f) + Raw(8.0f);
  EXPECT_EQ(FromGguf(builder)->rope.freq_factors, (std::vector<float>{1.0f, 8.0f}));
  builder.AddTensor("rope_freqs.weight", {3});
  ExpectRefused(FromGguf(builder), kInvalid, "rope_freqs.weight");
}

}  // namespace
}  // namespace kvmesh::model
