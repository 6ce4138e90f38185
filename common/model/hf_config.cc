#include "common/model/hf_config.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/model/hf_rope.h"
#include "common/model/json.h"
#include "common/model/printable.h"

namespace kvmesh::model {
namespace {

using Json = nlohmann::json;

absl::Status Unsupported(absl::string_view what, absl::string_view name) {
  return absl::UnimplementedError(absl::StrCat(what, " ", Printable(name), " is not supported"));
}

absl::string_view ClassName(Architecture architecture) {
  return architecture == Architecture::kQwen2 ? "Qwen2ForCausalLM" : "LlamaForCausalLM";
}

// model_type names the family; `architectures`, where present, must name its text generator.
absl::StatusOr<Architecture> ReadArchitecture(const JsonObject& config) {
  KVMESH_ASSIGN_OR_RETURN(const std::string model_type, config.String("model_type"));
  const std::optional<Architecture> architecture = ArchitectureByName(model_type);
  if (!architecture.has_value()) return Unsupported("architecture", model_type);
  if (!config.Has("architectures")) return *architecture;
  KVMESH_ASSIGN_OR_RETURN(const std::vector<std::string> classes, config.Strings("architectures"));
  if (classes.size() != 1 || classes[0] != ClassName(*architecture)) {
    return Unsupported("architecture", classes.empty() ? "of an empty list" : classes[0]);
  }
  return *architecture;
}

absl::Status ReadSizes(const JsonObject& json, ModelConfig* config) {
  KVMESH_ASSIGN_OR_RETURN(config->layer_count,
                          json.Uint("num_hidden_layers", 1, limits::kLayersMax));
  KVMESH_ASSIGN_OR_RETURN(config->hidden_size, json.Uint("hidden_size", 1, kWidthMax));
  KVMESH_ASSIGN_OR_RETURN(config->intermediate_size, json.Uint("intermediate_size", 1, kWidthMax));
  KVMESH_ASSIGN_OR_RETURN(config->head_count, json.Uint("num_attention_heads", 1, kWidthMax));
  KVMESH_ASSIGN_OR_RETURN(config->kv_head_count,
                          json.UintOr("num_key_value_heads", config->head_count, 1, kWidthMax));
  KVMESH_ASSIGN_OR_RETURN(config->vocab_size, json.Uint("vocab_size", 1, kVocabMax));
  KVMESH_ASSIGN_OR_RETURN(config->context_length,
                          json.Uint("max_position_embeddings", 1, kContextMax));
  KVMESH_ASSIGN_OR_RETURN(config->rms_norm_eps, json.Positive("rms_norm_eps"));
  if (json.Has("head_dim")) {
    KVMESH_ASSIGN_OR_RETURN(config->head_dim, json.Uint("head_dim", 1, kWidthMax));
  } else {
    KVMESH_ASSIGN_OR_RETURN(config->head_dim,
                            DerivedHeadDim(*config, "hidden_size", "num_attention_heads"));
  }
  return absl::OkStatus();
}

// Flags and names that change the arithmetic: only their usual values are known here.
absl::Status CheckArithmetic(const JsonObject& json) {
  if (json.Has("quantization_config")) {
    return absl::UnimplementedError(
        "key quantization_config: quantised safetensors are not supported");
  }
  KVMESH_ASSIGN_OR_RETURN(const std::string activation, json.StringOr("hidden_act", "silu"));
  if (activation != "silu") return Unsupported("key hidden_act: activation", activation);
  for (const absl::string_view key : {"attention_bias", "mlp_bias"}) {
    KVMESH_ASSIGN_OR_RETURN(const bool bias, json.BoolOr(key, false));
    if (bias) return absl::UnimplementedError(absl::StrCat("key ", key, ": true is not supported"));
  }
  return absl::OkStatus();
}

// Holds for every family, so that it is checked before the family is.
absl::Status CheckLayerTypesCount(const JsonObject& json) {
  if (!json.Has("layer_types") || !json.Has("num_hidden_layers")) return absl::OkStatus();
  KVMESH_ASSIGN_OR_RETURN(const uint64_t layers,
                          json.Uint("num_hidden_layers", 1, limits::kLayersMax));
  KVMESH_ASSIGN_OR_RETURN(const std::vector<std::string> kinds, json.Strings("layer_types"));
  if (kinds.size() == layers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("key layer_types has ", kinds.size(),
                                                 " entries for ", layers,
                                                 " layers (num_hidden_layers)"));
}

absl::Status ReadLayerKinds(const JsonObject& json, ModelConfig* config) {
  if (config->architecture == Architecture::kQwen2) {
    KVMESH_ASSIGN_OR_RETURN(const bool windowed, json.BoolOr("use_sliding_window", false));
    if (windowed) {
      return absl::UnimplementedError("key use_sliding_window: sliding windows are not supported");
    }
  }
  if (json.Has("layer_types")) {
    KVMESH_ASSIGN_OR_RETURN(const std::vector<std::string> kinds, json.Strings("layer_types"));
    for (const std::string& kind : kinds) {
      if (kind != "full_attention") return Unsupported("key layer_types: layer kind", kind);
    }
  }
  config->layer_kinds.assign(config->layer_count, LayerKind::kKeyValue);
  return absl::OkStatus();
}

// One id, or a list of them.
absl::StatusOr<std::vector<uint32_t>> ReadIds(const JsonObject& json, absl::string_view key,
                                              uint32_t vocab_size) {
  std::vector<uint32_t> ids;
  const Json* value = json.Find(key);
  if (value == nullptr) return ids;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          json.Name(key), " holds something else than ids below the vocab_size ", vocab_size));
    }
    ids.push_back(id.get<uint32_t>());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

absl::Status ReadTokens(const JsonObject& json, ModelConfig* config) {
  KVMESH_ASSIGN_OR_RETURN(config->eos_token_ids, ReadIds(json, "eos_token_id", config->vocab_size));
  if (!json.Has("bos_token_id")) return absl::OkStatus();
  KVMESH_ASSIGN_OR_RETURN(config->bos_token_id,
                          json.Uint("bos_token_id", 0, config->vocab_size - 1));
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadConfig(const Json& root) {
  if (!root.is_object()) return absl::InvalidArgumentError("not a JSON object");
  const JsonObject json(root);
  KVMESH_RETURN_IF_ERROR(CheckLayerTypesCount(json));
  ModelConfig config;
  KVMESH_ASSIGN_OR_RETURN(config.architecture, ReadArchitecture(json));
  KVMESH_RETURN_IF_ERROR(CheckArithmetic(json));
  KVMESH_RETURN_IF_ERROR(ReadSizes(json, &config));
  KVMESH_ASSIGN_OR_RETURN(config.rope, ReadRope(json, config.head_dim));
  KVMESH_RETURN_IF_ERROR(CheckHeads(config, "num_key_value_heads", "head_dim"));
  KVMESH_RETURN_IF_ERROR(ReadLayerKinds(json, &config));
  KVMESH_RETURN_IF_ERROR(ReadTokens(json, &config));
  KVMESH_ASSIGN_OR_RETURN(config.tied_embedding, json.BoolOr("tie_word_embeddings", false));
  config.qkv_bias = config.architecture == Architecture::kQwen2;
  return config;
}

absl::Status ReadGenerationConfig(const Json& root, ModelConfig* config) {
  if (!root.is_object()) return absl::InvalidArgumentError("not a JSON object");
  const JsonObject json(root);
  if (!json.Has("eos_token_id")) return absl::OkStatus();  // config.json's stay
  KVMESH_ASSIGN_OR_RETURN(config->eos_token_ids, ReadIds(json, "eos_token_id", config->vocab_size));
  return absl::OkStatus();
}

absl::Status InFile(absl::string_view file, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file, ": ", status.message()));
}

}  // namespace

absl::StatusOr<ModelConfig> ConfigFromHuggingFace(
    absl::string_view config_json, std::optional<absl::string_view> generation_config_json) {
  const absl::StatusOr<Json> root = ParseJson(config_json);
  if (!root.ok()) return InFile("config.json", root.status());
  absl::StatusOr<ModelConfig> config = ReadConfig(*root);
  if (!config.ok()) return InFile("config.json", config.status());
  if (!generation_config_json.has_value()) return config;
  const absl::StatusOr<Json> generation = ParseJson(*generation_config_json);
  if (!generation.ok()) return InFile("generation_config.json", generation.status());
  const absl::Status status = ReadGenerationConfig(*generation, &*config);
  if (!status.ok()) return InFile("generation_config.json", status);
  return config;
}

}  // namespace kvmesh::model
