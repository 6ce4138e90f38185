// One layer of the Llama and Qwen2 families: pre-norm grouped-query attention and a SwiGLU network,
// on rows of any sessions.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model.h"
#include "services/shard/engine/block_attention.h"
#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/kernels/step_kernels.h"
#include "services/shard/engine/layer_backend.h"
#include "services/shard/engine/multiply.h"
#include "services/shard/engine/packed_matrix.h"
#include "services/shard/engine/step_profile.h"
#include "services/shard/engine/weights_loader.h"

namespace kvmesh::shard {

// Rows are run through a layer by so many at a time: bounds the scratch, whatever the batch.
inline constexpr size_t kTileRows = 256;

// What all layers of an engine share. One user at a time.
struct NativeContext {
  ComputePool& pool;
  const Numerics numerics;
  const StepKernels& kernels;
  const KeyValueLayout layout;
  BlockAttention attention;
  MultiplyScratch multiply_scratch;
  StepProfile* const profile;  // null: none is kept
  std::atomic<uint64_t> kv_saturated{0};

  // Numbers of a tile of rows; each grows to what is needed.
  std::vector<float> normed;     // [rows, hidden_size]
  std::vector<float> query;      // [rows, heads * head_dim]
  std::vector<float> key;        // [rows, kv_heads * head_dim]
  std::vector<float> value;      // likewise
  std::vector<float> attended;   // [rows, heads * head_dim]
  std::vector<float> gate;       // [rows, intermediate_size]
  std::vector<float> up;         // likewise
  std::vector<float> added;      // [rows, hidden_size]
  std::vector<uint8_t> rounded;  // [threads, 2 * row_bytes]

  // `compute_pool` and `step_profile` must outlive this.
  NativeContext(ComputePool& compute_pool, Numerics numbers, const KeyValueLayout& kv_layout,
                size_t heads, StepProfile* step_profile);

  // Runs function(row, worker) for each row, on all threads if there are enough.
  void ForEachRow(size_t rows, ComputePool::Task function);

  // Multiply and BlockAttention::Run, profiled.
  void Multiply(const float* x, size_t rows, absl::Span<const Product> products);
  void Attend(absl::Span<const LayerRow> rows);

  // normed = rms_norm(x) of each row, [rows, weight's size].
  void Normalise(const float* x, const std::vector<float>& weight, float eps, size_t rows);

 private:
  const size_t heads_;
};

// Immutable; thread-safe.
class NativeLayer {
 public:
  // `digest` is that of the layer; zero where the loader has no folder. Errors of Model::Find and
  // WeightsLoader::Load.
  static absl::StatusOr<NativeLayer> Load(const model::Model& model, uint32_t layer,
                                          const Sha256Digest& digest, WeightsLoader& loader);

  // Runs `rows`; rows of one session are consecutive, in order of position. May throw
  // std::exception.
  void Run(NativeContext& context, absl::Span<const LayerRow> rows) const;

  uint64_t weight_bytes() const;

 private:
  NativeLayer() = default;

  void RunTile(NativeContext& context, absl::Span<const LayerRow> rows) const;
  void ProjectQueryKeyValue(NativeContext& context, absl::Span<const LayerRow> rows) const;
  void RotateAndKeep(NativeContext& context, absl::Span<const LayerRow> rows) const;
  void FeedForward(NativeContext& context, absl::Span<const LayerRow> rows) const;

  size_t hidden_size_ = 0;
  size_t heads_ = 0;
  size_t kv_heads_ = 0;
  size_t head_dim_ = 0;
  size_t rope_half_ = 0;
  float eps_ = 0;
  std::vector<float> attn_norm_, ffn_norm_;      // [hidden_size]
  std::vector<float> q_bias_, k_bias_, v_bias_;  // empty or one per row
  PackedMatrix q_, k_, v_, o_, gate_, up_, down_;
};

// A vector of the model, widened. Errors of Model::Find.
absl::StatusOr<std::vector<float>> LoadVector(const model::Model& model, model::WeightRole role,
                                              uint32_t layer = 0);

}  // namespace kvmesh::shard
