#include "services/shard/engine/decoder_layer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status_macros.h"
#include "services/shard/engine/rope.h"

namespace kvmesh::shard {
namespace {

using model::WeightRole;

// Below so many rows the work on single rows is too little to share out.
constexpr size_t kSharedRowsMin = 4;

template <typename Function>
void ForEachRow(ComputeContext& context, size_t rows, const Function& function) {
  if (rows < kSharedRowsMin) {
    for (size_t row = 0; row < rows; ++row) function(row);
    return;
  }
  context.pool.Run(rows, [&](size_t row, uint32_t) { function(row); });
}

void Grow(std::vector<float>& room, size_t count) {
  if (room.size() < count) room.resize(count);
}

// Adds `bias` (or nothing, if it is empty) to x.
void AddBias(const std::vector<float>& bias, float* x) {
  for (size_t i = 0; i < bias.size(); ++i) x[i] += bias[i];
}

void AddTo(float* hidden, const float* added, size_t count) {
  for (size_t i = 0; i < count; ++i) hidden[i] += added[i];
}

}  // namespace

absl::StatusOr<std::vector<float>> LoadVector(const model::Model& model, WeightRole role,
                                              uint32_t layer) {
  KVMESH_ASSIGN_OR_RETURN(const model::Tensor tensor, model.Find(role, layer));
  const model::WeightTypeInfo& info = model::InfoOf(tensor.type);
  std::vector<float> values(tensor.data.size() / info.block_bytes * info.block_size);
  model::Dequantize(tensor.type, tensor.data, absl::MakeSpan(values));
  return values;
}

absl::StatusOr<DecoderLayer> DecoderLayer::Load(const model::Model& model, uint32_t layer) {
  const model::ModelConfig& config = model.config();
  DecoderLayer loaded;
  loaded.hidden_size_ = config.hidden_size;
  loaded.heads_ = config.head_count;
  loaded.kv_heads_ = config.kv_head_count;
  loaded.head_dim_ = config.head_dim;
  loaded.rope_half_ = config.rope.dims / 2;
  loaded.eps_ = static_cast<float>(config.rms_norm_eps);

  const std::pair<WeightRole, WeightMatrix*> matrices[] = {
      {WeightRole::kAttnQ, &loaded.q_},      {WeightRole::kAttnK, &loaded.k_},
      {WeightRole::kAttnV, &loaded.v_},      {WeightRole::kAttnO, &loaded.o_},
      {WeightRole::kFfnGate, &loaded.gate_}, {WeightRole::kFfnUp, &loaded.up_},
      {WeightRole::kFfnDown, &loaded.down_}};
  for (const auto& [role, matrix] : matrices) {
    KVMESH_ASSIGN_OR_RETURN(const model::Tensor tensor, model.Find(role, layer));
    *matrix = WeightMatrix(tensor, config.head_dim);
  }
  KVMESH_ASSIGN_OR_RETURN(loaded.attn_norm_, LoadVector(model, WeightRole::kAttnNorm, layer));
  KVMESH_ASSIGN_OR_RETURN(loaded.ffn_norm_, LoadVector(model, WeightRole::kFfnNorm, layer));
  if (config.qkv_bias) {
    KVMESH_ASSIGN_OR_RETURN(loaded.q_bias_, LoadVector(model, WeightRole::kAttnQBias, layer));
    KVMESH_ASSIGN_OR_RETURN(loaded.k_bias_, LoadVector(model, WeightRole::kAttnKBias, layer));
    KVMESH_ASSIGN_OR_RETURN(loaded.v_bias_, LoadVector(model, WeightRole::kAttnVBias, layer));
  }
  return loaded;
}

void DecoderLayer::Run(ComputeContext& context, LayerScratch& scratch,
                       absl::Span<const LayerRow> rows) const {
  const size_t tile = std::min(rows.size(), kTileRows);
  Grow(scratch.normed, tile * hidden_size_);
  Grow(scratch.added, tile * hidden_size_);
  Grow(scratch.query, tile * q_.rows());
  Grow(scratch.attention, tile * q_.rows());
  Grow(scratch.key, tile * k_.rows());
  Grow(scratch.value, tile * v_.rows());
  Grow(scratch.gate, tile * gate_.rows());
  Grow(scratch.up, tile * up_.rows());
  for (size_t begin = 0; begin < rows.size(); begin += kTileRows) {
    RunTile(context, scratch, rows.subspan(begin, kTileRows));
  }
}

void DecoderLayer::RunTile(ComputeContext& context, LayerScratch& scratch,
                           absl::Span<const LayerRow> rows) const {
  ProjectQueryKeyValue(context, scratch, rows);
  RotateAndKeep(context, scratch, rows);
  Attend(context, scratch, rows);
  const Product output[] = {{&o_, scratch.added.data()}};
  Multiply(context, scratch.attention.data(), rows.size(), output);
  ForEachRow(context, rows.size(), [&](size_t row) {
    AddTo(rows[row].hidden, scratch.added.data() + row * hidden_size_, hidden_size_);
  });
  FeedForward(context, scratch, rows);
}

void DecoderLayer::ProjectQueryKeyValue(ComputeContext& context, LayerScratch& scratch,
                                        absl::Span<const LayerRow> rows) const {
  ForEachRow(context, rows.size(), [&](size_t row) {
    context.kernels.rms_norm(rows[row].hidden, attn_norm_.data(), hidden_size_, eps_,
                             scratch.normed.data() + row * hidden_size_);
  });
  const Product products[] = {
      {&q_, scratch.query.data()}, {&k_, scratch.key.data()}, {&v_, scratch.value.data()}};
  Multiply(context, scratch.normed.data(), rows.size(), products);
}

void DecoderLayer::RotateAndKeep(ComputeContext& context, LayerScratch& scratch,
                                 absl::Span<const LayerRow> rows) const {
  ForEachRow(context, rows.size(), [&](size_t row) {
    float* query = scratch.query.data() + row * q_.rows();
    float* key = scratch.key.data() + row * k_.rows();
    float* value = scratch.value.data() + row * v_.rows();
    AddBias(q_bias_, query);
    AddBias(k_bias_, key);
    AddBias(v_bias_, value);
    RotateHeads(rows[row].cos_sin, rope_half_, heads_, head_dim_, query);
    RotateHeads(rows[row].cos_sin, rope_half_, kv_heads_, head_dim_, key);
    rows[row].state->Put(rows[row].position, reinterpret_cast<const uint8_t*>(key),
                         reinterpret_cast<const uint8_t*>(value));
  });
}

void DecoderLayer::Attend(ComputeContext& context, LayerScratch& scratch,
                          absl::Span<const LayerRow> rows) const {
  BlockAttention attention(context.pool, kStepKernelsAvx2, rows[0].state->layout(), heads_);
  attention.Run(rows, scratch.query.data(), scratch.attention.data());
}

void DecoderLayer::FeedForward(ComputeContext& context, LayerScratch& scratch,
                               absl::Span<const LayerRow> rows) const {
  ForEachRow(context, rows.size(), [&](size_t row) {
    context.kernels.rms_norm(rows[row].hidden, ffn_norm_.data(), hidden_size_, eps_,
                             scratch.normed.data() + row * hidden_size_);
  });
  const Product products[] = {{&gate_, scratch.gate.data()}, {&up_, scratch.up.data()}};
  Multiply(context, scratch.normed.data(), rows.size(), products);
  ForEachRow(context, rows.size(), [&](size_t row) {
    const size_t at = row * gate_.rows();
    context.kernels.silu_multiply(scratch.gate.data() + at, scratch.up.data() + at, gate_.rows());
  });
  const Product down[] = {{&down_, scratch.added.data()}};
  Multiply(context, scratch.gate.data(), rows.size(), down);
  ForEachRow(context, rows.size(), [&](size_t row) {
    AddTo(rows[row].hidden, scratch.added.data() + row * hidden_size_, hidden_size_);
  });
}

}  // namespace kvmesh::shard
