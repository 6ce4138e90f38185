// One layer of the Llama and Qwen2 families: pre-norm grouped-query attention and a SwiGLU network,
// on rows of any sessions. Formulas and names as in transformers' LlamaDecoderLayer and
// Qwen2DecoderLayer.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model.h"
#include "services/shard/engine/block_attention.h"
#include "services/shard/engine/layer_backend.h"
#include "services/shard/engine/weight_matrix.h"

namespace kvmesh::shard {

// Rows are run through a layer by so many at a time: bounds the scratch, whatever the batch. More
// would save little: widening a weight costs a twentieth of its products with 128 rows.
inline constexpr size_t kTileRows = 128;

// Vectors and numbers that fill a tile of rows. One for all layers; grows to what is needed.
struct LayerScratch {
  std::vector<float> normed;     // [rows, hidden_size]
  std::vector<float> query;      // [rows, heads * head_dim]
  std::vector<float> key;        // [rows, kv_heads * head_dim]
  std::vector<float> value;      // likewise
  std::vector<float> attention;  // [rows, heads * head_dim]
  std::vector<float> gate;       // [rows, intermediate_size]
  std::vector<float> up;         // likewise
  std::vector<float> added;      // [rows, hidden_size]
};

// Immutable; thread-safe. The model must outlive it.
class DecoderLayer {
 public:
  // Errors of Model::Find.
  static absl::StatusOr<DecoderLayer> Load(const model::Model& model, uint32_t layer);

  // Runs `rows`; rows of one session are consecutive, in order of position. May throw
  // std::exception.
  void Run(ComputeContext& context, LayerScratch& scratch, absl::Span<const LayerRow> rows) const;

 private:
  DecoderLayer() = default;

  void RunTile(ComputeContext& context, LayerScratch& scratch,
               absl::Span<const LayerRow> rows) const;
  void ProjectQueryKeyValue(ComputeContext& context, LayerScratch& scratch,
                            absl::Span<const LayerRow> rows) const;
  void RotateAndKeep(ComputeContext& context, LayerScratch& scratch,
                     absl::Span<const LayerRow> rows) const;
  void Attend(ComputeContext& context, LayerScratch& scratch,
              absl::Span<const LayerRow> rows) const;
  void FeedForward(ComputeContext& context, LayerScratch& scratch,
                   absl::Span<const LayerRow> rows) const;

  uint32_t hidden_size_ = 0;
  uint32_t heads_ = 0;
  uint32_t kv_heads_ = 0;
  uint32_t head_dim_ = 0;
  uint32_t rope_half_ = 0;
  float eps_ = 0;
  std::vector<float> attn_norm_, ffn_norm_;      // [hidden_size]
  std::vector<float> q_bias_, k_bias_, v_bias_;  // empty or one per row
  WeightMatrix q_, k_, v_, o_, gate_, up_, down_;
};

// A vector of the model, widened. Errors of Model::Find.
absl::StatusOr<std::vector<float>> LoadVector(const model::Model& model, model::WeightRole role,
                                              uint32_t layer = 0);

}  // namespace kvmesh::shard
