#include "common/model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/model/bytes.h"
#include "common/model/printable.h"

namespace kvmesh::model {
namespace {

// The keys of one architecture: "llama.block_count".
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufFile& file, absl::string_view architecture)
      : file_(file), prefix_(absl::StrCat(architecture, ".")) {}

  std::string Name(absl::string_view key) const { return absl::StrCat(prefix_, key); }
  bool Has(absl::string_view key) const { return file_.Has(Name(key)); }

  absl::StatusOr<uint64_t> Uint(absl::string_view key, uint64_t min, uint64_t max) const {
    return Required(file_.GetUint(Name(key), min, max));
  }
  absl::StatusOr<uint64_t> UintOr(absl::string_view key, uint64_t fallback, uint64_t min,
                                  uint64_t max) const {
    if (!Has(key)) return fallback;
    return Uint(key, min, max);
  }
  absl::StatusOr<double> Positive(absl::string_view key) const {
    KVMESH_ASSIGN_OR_RETURN(const double value, Required(file_.GetFloat(Name(key))));
    if (value <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("key ", Name(key), " is ", value, ", not above 0"));
    }
    return value;
  }
  absl::StatusOr<double> PositiveOr(absl::string_view key, double fallback) const {
    if (!Has(key)) return fallback;
    return Positive(key);
  }

 private:
  // A missing key is a malformed model, not a missing one.
  template <typename T>
  static absl::StatusOr<T> Required(absl::StatusOr<T> value) {
    if (absl::IsNotFound(value.status())) {
      return absl::InvalidArgumentError(value.status().message());
    }
    return value;
  }

  const GgufFile& file_;
  std::string prefix_;
};

absl::StatusOr<Architecture> ReadArchitecture(const GgufFile& file) {
  if (file.Has("general.type")) {
    KVMESH_ASSIGN_OR_RETURN(const absl::string_view type, file.GetString("general.type"));
    if (type != "model") {
      return absl::UnimplementedError(
          absl::StrCat("key general.type: the file is no model but of type ", Printable(type)));
    }
  }
  if (file.Has("split.count")) {
    KVMESH_ASSIGN_OR_RETURN(const uint64_t parts, file.GetUint("split.count", 0, UINT64_MAX));
    if (parts > 1) {
      return absl::UnimplementedError(absl::StrCat(
          "key split.count: one of ", parts, " parts; a model in several files is not supported"));
    }
  }
  const absl::StatusOr<absl::string_view> name = file.GetString("general.architecture");
  if (!name.ok()) return absl::InvalidArgumentError(name.status().message());
  const std::optional<Architecture> architecture = ArchitectureByName(*name);
  if (!architecture.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat("architecture ", Printable(*name), " is not supported"));
  }
  return *architecture;
}

absl::Status ReadSizes(const ArchitectureKeys& keys, ModelConfig* config) {
  KVMESH_ASSIGN_OR_RETURN(config->layer_count, keys.Uint("block_count", 1, limits::kLayersMax));
  KVMESH_ASSIGN_OR_RETURN(config->hidden_size, keys.Uint("embedding_length", 1, kWidthMax));
  KVMESH_ASSIGN_OR_RETURN(config->intermediate_size,
                          keys.Uint("feed_forward_length", 1, kWidthMax));
  KVMESH_ASSIGN_OR_RETURN(config->head_count, keys.Uint("attention.head_count", 1, kWidthMax));
  KVMESH_ASSIGN_OR_RETURN(config->kv_head_count,
                          keys.UintOr("attention.head_count_kv", config->head_count, 1, kWidthMax));
  KVMESH_ASSIGN_OR_RETURN(config->context_length, keys.Uint("context_length", 1, kContextMax));
  KVMESH_ASSIGN_OR_RETURN(config->rms_norm_eps, keys.Positive("attention.layer_norm_rms_epsilon"));
  if (keys.Has("attention.key_length")) {
    KVMESH_ASSIGN_OR_RETURN(config->head_dim, keys.Uint("attention.key_length", 1, kWidthMax));
  } else {
    KVMESH_ASSIGN_OR_RETURN(config->head_dim,
                            DerivedHeadDim(*config, "embedding_length", "attention.head_count"));
  }
  KVMESH_ASSIGN_OR_RETURN(const uint64_t value_length,
                          keys.UintOr("attention.value_length", config->head_dim, 1, kWidthMax));
  if (value_length != config->head_dim) {
    return absl::UnimplementedError(absl::StrCat("key ", keys.Name("attention.value_length"), ": ",
                                                 value_length, " with keys of ", config->head_dim,
                                                 " is not supported"));
  }
  return absl::OkStatus();
}

// Keys that change the arithmetic and that no supported model sets.
absl::Status CheckArithmetic(const ArchitectureKeys& keys) {
  for (const absl::string_view key : {"expert_count", "attention.sliding_window"}) {
    KVMESH_ASSIGN_OR_RETURN(const uint64_t value, keys.UintOr(key, 0, 0, UINT64_MAX));
    if (value != 0) {
      return absl::UnimplementedError(
          absl::StrCat("key ", keys.Name(key), ": ", value, " is not supported"));
    }
  }
  for (const absl::string_view key : {"attention.scale", "logit_scale", "residual_scale",
                                      "embedding_scale", "attention.clamp_kqv"}) {
    if (keys.Has(key)) {
      return absl::UnimplementedError(absl::StrCat("key ", keys.Name(key), " is not supported"));
    }
  }
  return absl::OkStatus();
}

// rope_freqs.weight: how llama3 scaling arrives in a GGUF.
absl::Status ReadFreqFactors(const GgufFile& file, RopeConfig* rope) {
  const auto it =
      std::find_if(file.tensors().begin(), file.tensors().end(),
                   [](const auto& tensor) { return tensor.name == "rope_freqs.weight"; });
  if (it == file.tensors().end()) return absl::OkStatus();
  if (it->type != WeightType::kF32 || it->shape != std::vector<uint64_t>{rope->dims / 2}) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor rope_freqs.weight is not f32 [", rope->dims / 2, "]"));
  }
  for (uint32_t i = 0; i < rope->dims / 2; ++i) {
    const auto factor = LoadUnaligned<float>(it->data.data() + i * sizeof(float));
    if (!std::isfinite(factor) || factor <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor rope_freqs.weight: element ", i, " is ", factor, ", not above 0"));
    }
    rope->freq_factors.push_back(factor);
  }
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufFile& file, const ArchitectureKeys& keys, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  KVMESH_ASSIGN_OR_RETURN(rope.theta, keys.PositiveOr("rope.freq_base", 10000.0));
  KVMESH_ASSIGN_OR_RETURN(rope.dims,
                          keys.UintOr("rope.dimension_count", config->head_dim, 1, kWidthMax));
  KVMESH_RETURN_IF_ERROR(
      CheckHeads(*config, keys.Name("attention.head_count_kv"), keys.Name("rope.dimension_count")));
  if (config->architecture == Architecture::kLlama && rope.dims != config->head_dim) {
    // How the converter's reordering of rows and a part rotation go together is nowhere defined.
    return absl::UnimplementedError(absl::StrCat("key ", keys.Name("rope.dimension_count"), ": ",
                                                 rope.dims, " of heads of ", config->head_dim,
                                                 " is not supported"));
  }
  const std::string type_key = keys.Name("rope.scaling.type");
  absl::string_view type = keys.Has("rope.scale_linear") ? "linear" : "none";
  if (file.Has(type_key)) {
    KVMESH_ASSIGN_OR_RETURN(type, file.GetString(type_key));
  }
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    const absl::string_view older =
        keys.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
    KVMESH_ASSIGN_OR_RETURN(rope.factor, keys.Positive(older));
  } else if (type != "none") {
    return absl::UnimplementedError(
        absl::StrCat("key ", type_key, ": rope scaling ", Printable(type), " is not supported"));
  }
  return ReadFreqFactors(file, &rope);
}

absl::StatusOr<uint64_t> RowsOfEmbedding(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == "token_embd.weight") return tensor.shape.front();
  }
  return absl::InvalidArgumentError("tensor token_embd.weight is missing");
}

// The vocabulary: its size by key or by the embedding's rows, and that the tokenizer's lists fit
// it.
absl::Status ReadVocabulary(const GgufFile& file, const ArchitectureKeys& keys,
                            ModelConfig* config) {
  KVMESH_ASSIGN_OR_RETURN(const uint64_t rows, RowsOfEmbedding(file));
  if (rows > kVocabMax) {
    return absl::InvalidArgumentError(absl::StrCat("tensor token_embd.weight has ", rows, " rows"));
  }
  KVMESH_ASSIGN_OR_RETURN(config->vocab_size, keys.UintOr("vocab_size", rows, 1, kVocabMax));
  const GgufValue* tokens = file.Find("tokenizer.ggml.tokens");
  if (tokens == nullptr) return absl::OkStatus();
  if (tokens->type != GgufValueType::kArray || tokens->element_type != GgufValueType::kString) {
    return absl::InvalidArgumentError("key tokenizer.ggml.tokens is no array of strings");
  }
  if (tokens->count > rows) {
    return absl::InvalidArgumentError(absl::StrCat("key tokenizer.ggml.tokens has ", tokens->count,
                                                   " tokens, tensor token_embd.weight only ", rows,
                                                   " rows"));
  }
  for (const absl::string_view key : {"tokenizer.ggml.scores", "tokenizer.ggml.token_type"}) {
    const GgufValue* list = file.Find(key);
    if (list == nullptr) continue;
    if (list->type != GgufValueType::kArray || list->count != tokens->count) {
      return absl::InvalidArgumentError(
          absl::StrCat("key ", key, " is no array of ", tokens->count, " (tokenizer.ggml.tokens)"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadTokens(const GgufFile& file, ModelConfig* config) {
  const uint64_t id_max = config->vocab_size - 1;
  for (const absl::string_view name : {"eos", "eot", "eom"}) {
    const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
    if (!file.Has(key)) continue;
    KVMESH_ASSIGN_OR_RETURN(const uint64_t id, file.GetUint(key, 0, id_max));
    config->eos_token_ids.push_back(static_cast<uint32_t>(id));
  }
  std::sort(config->eos_token_ids.begin(), config->eos_token_ids.end());
  config->eos_token_ids.erase(
      std::unique(config->eos_token_ids.begin(), config->eos_token_ids.end()),
      config->eos_token_ids.end());
  if (!file.Has("tokenizer.ggml.bos_token_id")) return absl::OkStatus();
  KVMESH_ASSIGN_OR_RETURN(config->bos_token_id,
                          file.GetUint("tokenizer.ggml.bos_token_id", 0, id_max));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ConfigFromGguf(const GgufFile& file) {
  ModelConfig config;
  KVMESH_ASSIGN_OR_RETURN(config.architecture, ReadArchitecture(file));
  const ArchitectureKeys keys(file, ArchitectureName(config.architecture));
  KVMESH_RETURN_IF_ERROR(ReadSizes(keys, &config));
  KVMESH_RETURN_IF_ERROR(CheckArithmetic(keys));
  KVMESH_RETURN_IF_ERROR(ReadRope(file, keys, &config));
  KVMESH_RETURN_IF_ERROR(ReadVocabulary(file, keys, &config));
  KVMESH_RETURN_IF_ERROR(ReadTokens(file, &config));
  config.qkv_bias = config.architecture == Architecture::kQwen2;
  config.tied_embedding =
      std::none_of(file.tensors().begin(), file.tensors().end(),
                   [](const auto& tensor) { return tensor.name == "output.weight"; });
  config.layer_kinds.assign(config.layer_count, LayerKind::kKeyValue);
  return config;
}

}  // namespace kvmesh::model
