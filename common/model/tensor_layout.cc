#include "common/model/tensor_layout.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/printable.h"

namespace kvmesh::model {
namespace {

struct RoleNames {
  WeightRole role;
  absl::string_view hugging_face;
  absl::string_view gguf;
};

constexpr std::array<RoleNames, 3> kGlobalNames = {{
    {WeightRole::kEmbedding, "model.embed_tokens.weight", "token_embd.weight"},
    {WeightRole::kOutputNorm, "model.norm.weight", "output_norm.weight"},
    {WeightRole::kOutput, "lm_head.weight", "output.weight"},
}};

constexpr std::array<RoleNames, 12> kLayerNames = {{
    {WeightRole::kAttnNorm, "input_layernorm.weight", "attn_norm.weight"},
    {WeightRole::kAttnQ, "self_attn.q_proj.weight", "attn_q.weight"},
    {WeightRole::kAttnK, "self_attn.k_proj.weight", "attn_k.weight"},
    {WeightRole::kAttnV, "self_attn.v_proj.weight", "attn_v.weight"},
    {WeightRole::kAttnO, "self_attn.o_proj.weight", "attn_output.weight"},
    {WeightRole::kAttnQBias, "self_attn.q_proj.bias", "attn_q.bias"},
    {WeightRole::kAttnKBias, "self_attn.k_proj.bias", "attn_k.bias"},
    {WeightRole::kAttnVBias, "self_attn.v_proj.bias", "attn_v.bias"},
    {WeightRole::kFfnNorm, "post_attention_layernorm.weight", "ffn_norm.weight"},
    {WeightRole::kFfnGate, "mlp.gate_proj.weight", "ffn_gate.weight"},
    {WeightRole::kFfnUp, "mlp.up_proj.weight", "ffn_up.weight"},
    {WeightRole::kFfnDown, "mlp.down_proj.weight", "ffn_down.weight"},
}};

std::vector<uint64_t> ShapeOf(WeightRole role, const ModelConfig& config) {
  const uint64_t hidden = config.hidden_size;
  const uint64_t q_rows = uint64_t{config.head_count} * config.head_dim;
  const uint64_t kv_rows = uint64_t{config.kv_head_count} * config.head_dim;
  switch (role) {
    case WeightRole::kEmbedding:
    case WeightRole::kOutput:
      return {config.vocab_size, hidden};
    case WeightRole::kOutputNorm:
    case WeightRole::kAttnNorm:
    case WeightRole::kFfnNorm:
      return {hidden};
    case WeightRole::kAttnQ:
      return {q_rows, hidden};
    case WeightRole::kAttnK:
    case WeightRole::kAttnV:
      return {kv_rows, hidden};
    case WeightRole::kAttnO:
      return {hidden, q_rows};
    case WeightRole::kAttnQBias:
      return {q_rows};
    case WeightRole::kAttnKBias:
    case WeightRole::kAttnVBias:
      return {kv_rows};
    case WeightRole::kFfnGate:
    case WeightRole::kFfnUp:
      return {config.intermediate_size, hidden};
    case WeightRole::kFfnDown:
      return {hidden, config.intermediate_size};
  }
  return {};
}

// The config's keys behind a shape, so that a message says where to look.
absl::string_view KeysBehind(WeightRole role, TensorNaming naming) {
  const bool gguf = naming == TensorNaming::kGguf;
  switch (role) {
    case WeightRole::kEmbedding:
    case WeightRole::kOutput:
      return gguf ? "vocab_size, embedding_length" : "vocab_size, hidden_size";
    case WeightRole::kOutputNorm:
    case WeightRole::kAttnNorm:
    case WeightRole::kFfnNorm:
      return gguf ? "embedding_length" : "hidden_size";
    case WeightRole::kAttnQ:
    case WeightRole::kAttnO:
    case WeightRole::kAttnQBias:
      return gguf ? "attention.head_count, attention.key_length, embedding_length"
                  : "num_attention_heads, head_dim, hidden_size";
    case WeightRole::kAttnK:
    case WeightRole::kAttnV:
    case WeightRole::kAttnKBias:
    case WeightRole::kAttnVBias:
      return gguf ? "attention.head_count_kv, attention.key_length, embedding_length"
                  : "num_key_value_heads, head_dim, hidden_size";
    case WeightRole::kFfnGate:
    case WeightRole::kFfnUp:
    case WeightRole::kFfnDown:
      return gguf ? "feed_forward_length, embedding_length" : "intermediate_size, hidden_size";
  }
  return "";
}

bool IsBias(WeightRole role) {
  return role == WeightRole::kAttnQBias || role == WeightRole::kAttnKBias ||
         role == WeightRole::kAttnVBias;
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

class Resolver {
 public:
  Resolver(const ModelConfig& config, TensorNaming naming, const std::vector<StoredTensor>& stored)
      : config_(config), naming_(naming), stored_(stored), used_(stored.size(), false) {}

  absl::StatusOr<ModelTensors> Run() {
    for (size_t i = 0; i < stored_.size(); ++i) by_name_.emplace(stored_[i].name, i);
    ModelTensors tensors;
    for (const RoleNames& names : kGlobalNames) {
      if (names.role == WeightRole::kOutput && config_.tied_embedding) continue;
      KVMESH_ASSIGN_OR_RETURN(RoleTensor found, Find(names, ""));
      tensors.global.push_back(std::move(found));
    }
    // Grows by what is found: a config that announces layers which are not there ends at the first
    // of them.
    for (uint32_t layer = 0; layer < config_.layer_count; ++layer) {
      std::vector<RoleTensor> of_layer;
      for (const RoleNames& names : kLayerNames) {
        if (IsBias(names.role) && !config_.qkv_bias) continue;
        KVMESH_ASSIGN_OR_RETURN(RoleTensor found, Find(names, LayerPrefix(layer)));
        of_layer.push_back(std::move(found));
      }
      tensors.layers.push_back(std::move(of_layer));
    }
    KVMESH_RETURN_IF_ERROR(CheckNoneIsLeft());
    return tensors;
  }

 private:
  std::string LayerPrefix(uint32_t layer) const {
    return naming_ == TensorNaming::kGguf ? absl::StrCat("blk.", layer, ".")
                                          : absl::StrCat("model.layers.", layer, ".");
  }

  absl::StatusOr<RoleTensor> Find(const RoleNames& names, absl::string_view prefix) {
    const std::string name =
        absl::StrCat(prefix, naming_ == TensorNaming::kGguf ? names.gguf : names.hugging_face);
    const auto it = by_name_.find(name);
    if (it == by_name_.end()) {
      const absl::string_view hint = prefix.empty() ? ""
                                     : naming_ == TensorNaming::kGguf
                                         ? " (layers by key block_count)"
                                         : " (layers by key num_hidden_layers)";
      return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " is missing", hint));
    }
    const StoredTensor& stored = stored_[it->second];
    used_[it->second] = true;
    const std::vector<uint64_t> shape = ShapeOf(names.role, config_);
    if (stored.shape != shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", name, " has the shape ", ShapeText(stored.shape), "; the keys ",
                       KeysBehind(names.role, naming_), " ask for ", ShapeText(shape)));
    }
    const bool widened_once = shape.size() == 1;  // norms and biases: ggml has them unquantised
    if (!stored.type.has_value() || (widened_once && InfoOf(*stored.type).block_size != 1)) {
      return absl::UnimplementedError(
          absl::StrCat("tensor ", name, " of type ", stored.type_name, " is not supported"));
    }
    Tensor tensor{.name = name, .type = *stored.type, .shape = shape, .data = stored.data};
    tensor.rope_interleaved =
        naming_ == TensorNaming::kGguf && config_.architecture == Architecture::kLlama &&
        (names.role == WeightRole::kAttnQ || names.role == WeightRole::kAttnK);
    return RoleTensor{names.role, std::move(tensor)};
  }

  // A tensor that nobody asks for would be left out of the arithmetic: the files then hold another
  // model than the config says. Tables of rope frequencies of old checkpoints are the exception;
  // they are computed.
  absl::Status CheckNoneIsLeft() const {
    for (size_t i = 0; i < stored_.size(); ++i) {
      const std::string& name = stored_[i].name;
      if (used_[i] || absl::EndsWith(name, "rotary_emb.inv_freq")) continue;
      if (naming_ == TensorNaming::kGguf && name == "rope_freqs.weight") continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Printable(name), " has no place in a ", ArchitectureName(config_.architecture),
          " model of ", config_.layer_count, " layers"));
    }
    return absl::OkStatus();
  }

  const ModelConfig& config_;
  TensorNaming naming_;
  const std::vector<StoredTensor>& stored_;
  absl::flat_hash_map<absl::string_view, size_t> by_name_;
  std::vector<bool> used_;
};

}  // namespace

bool IsLayerRole(WeightRole role) {
  return role != WeightRole::kEmbedding && role != WeightRole::kOutputNorm &&
         role != WeightRole::kOutput;
}

absl::StatusOr<ModelTensors> ResolveTensors(const ModelConfig& config, TensorNaming naming,
                                            const std::vector<StoredTensor>& stored) {
  return Resolver(config, naming, stored).Run();
}

}  // namespace kvmesh::model
