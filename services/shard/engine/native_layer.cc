#include "services/shard/engine/native_layer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/status_macros.h"

namespace kvmesh::shard {
namespace {

using model::WeightRole;

// Below so many rows the work on single rows is too little to share out.
constexpr size_t kSharedRowsMin = 4;

template <typename Number>
void Grow(std::vector<Number>& room, size_t count) {
  if (room.size() < count) room.resize(count);
}

absl::StatusOr<std::vector<float>> LoadBias(const model::Model& model, WeightRole role,
                                            uint32_t layer) {
  if (!model.config().qkv_bias) return std::vector<float>();
  return LoadVector(model, role, layer);
}

}  // namespace

absl::StatusOr<std::vector<float>> LoadVector(const model::Model& model, WeightRole role,
                                              uint32_t layer) {
  KVMESH_ASSIGN_OR_RETURN(const model::Tensor tensor, model.Find(role, layer));
  const model::WeightTypeInfo& info = model::InfoOf(tensor.type);
  std::vector<float> values(tensor.data.size() / info.block_bytes * info.block_size);
  model::Dequantize(tensor.type, tensor.data, absl::MakeSpan(values));
  model.ReleasePages(tensor);
  return values;
}

NativeContext::NativeContext(ComputePool& compute_pool, Numerics numbers,
                             const KeyValueLayout& kv_layout, size_t heads,
                             StepProfile* step_profile)
    : pool(compute_pool),
      numerics(std::move(numbers)),
      kernels(StepKernelsOf(numerics.set)),
      layout(kv_layout),
      attention(pool, kernels, layout, heads),
      profile(step_profile),
      heads_(heads) {}

void NativeContext::Multiply(const float* x, size_t rows, absl::Span<const Product> products) {
  if (profile == nullptr) {
    shard::Multiply(pool, multiply_scratch, numerics, x, rows, products);
    return;
  }
  const MonoTime begin = profile->clock.Now();
  shard::Multiply(pool, multiply_scratch, numerics, x, rows, products);
  profile->costs.products += profile->clock.Now() - begin;
  for (const Product& product : products) {
    const PackedMatrix& weights = *product.weights;
    const bool rounds = numerics.rounds_to_16 && model::InfoOf(weights.type()).block_size > 1;
    (rounds ? profile->costs.word_operations : profile->costs.float_operations) +=
        2 * rows * weights.rows() * weights.columns();
    profile->costs.weight_bytes += weights.bytes();
  }
}

void NativeContext::Attend(absl::Span<const LayerRow> rows) {
  if (profile == nullptr) {
    attention.Run(rows, query.data(), attended.data());
    return;
  }
  const MonoTime begin = profile->clock.Now();
  attention.Run(rows, query.data(), attended.data());
  profile->costs.attention += profile->clock.Now() - begin;
  uint64_t tokens = 0;
  for (const LayerRow& row : rows) tokens += row.position + 1;
  profile->costs.attended_bytes += tokens * 2 * layout.row_bytes();
  profile->costs.attention_operations += tokens * 4 * heads_ * layout.head_dim;
}

void NativeContext::Normalise(const float* x, const std::vector<float>& weight, float eps,
                              size_t rows) {
  const size_t columns = weight.size();
  Grow(normed, rows * columns);
  ForEachRow(rows, [&](size_t row, uint32_t) {
    kernels.rms_norm(x + row * columns, weight.data(), columns, eps, normed.data() + row * columns);
  });
}

void NativeContext::ForEachRow(size_t rows, ComputePool::Task function) {
  if (rows < kSharedRowsMin) {
    for (size_t row = 0; row < rows; ++row) function(row, 0);
    return;
  }
  pool.Run(rows, function);
}

absl::StatusOr<NativeLayer> NativeLayer::Load(const model::Model& model, uint32_t layer,
                                              const Sha256Digest& digest, WeightsLoader& loader) {
  const model::ModelConfig& config = model.config();
  NativeLayer loaded;
  loaded.hidden_size_ = config.hidden_size;
  loaded.heads_ = config.head_count;
  loaded.kv_heads_ = config.kv_head_count;
  loaded.head_dim_ = config.head_dim;
  loaded.rope_half_ = config.rope.dims / 2;
  loaded.eps_ = static_cast<float>(config.rms_norm_eps);

  const std::pair<WeightRole, PackedMatrix*> matrices[] = {
      {WeightRole::kAttnQ, &loaded.q_},      {WeightRole::kAttnK, &loaded.k_},
      {WeightRole::kAttnV, &loaded.v_},      {WeightRole::kAttnO, &loaded.o_},
      {WeightRole::kFfnGate, &loaded.gate_}, {WeightRole::kFfnUp, &loaded.up_},
      {WeightRole::kFfnDown, &loaded.down_}};
  std::vector<MatrixSource> sources;
  sources.reserve(std::size(matrices));
  for (const auto& [role, matrix] : matrices) {
    KVMESH_ASSIGN_OR_RETURN(model::Tensor tensor, model.Find(role, layer));
    const uint32_t rope_head_dim = tensor.rope_interleaved ? config.head_dim : 0;
    sources.push_back({.tensor = std::move(tensor), .rope_head_dim = rope_head_dim});
  }
  KVMESH_ASSIGN_OR_RETURN(std::vector<PackedMatrix> packed, loader.Load(digest, sources));
  for (size_t i = 0; i < packed.size(); ++i) *matrices[i].second = std::move(packed[i]);
  KVMESH_ASSIGN_OR_RETURN(loaded.attn_norm_, LoadVector(model, WeightRole::kAttnNorm, layer));
  KVMESH_ASSIGN_OR_RETURN(loaded.ffn_norm_, LoadVector(model, WeightRole::kFfnNorm, layer));
  KVMESH_ASSIGN_OR_RETURN(loaded.q_bias_, LoadBias(model, WeightRole::kAttnQBias, layer));
  KVMESH_ASSIGN_OR_RETURN(loaded.k_bias_, LoadBias(model, WeightRole::kAttnKBias, layer));
  KVMESH_ASSIGN_OR_RETURN(loaded.v_bias_, LoadBias(model, WeightRole::kAttnVBias, layer));
  return loaded;
}

uint64_t NativeLayer::weight_bytes() const {
  uint64_t bytes = 0;
  for (const PackedMatrix* matrix : {&q_, &k_, &v_, &o_, &gate_, &up_, &down_}) {
    bytes += matrix->bytes();
  }
  for (const std::vector<float>* vector : {&attn_norm_, &ffn_norm_, &q_bias_, &k_bias_, &v_bias_}) {
    bytes += vector->size() * sizeof(float);
  }
  return bytes;
}

void NativeLayer::Run(NativeContext& context, absl::Span<const LayerRow> rows) const {
  const size_t tile = std::min(rows.size(), kTileRows);
  Grow(context.normed, tile * hidden_size_);
  Grow(context.added, tile * hidden_size_);
  Grow(context.query, tile * q_.rows());
  Grow(context.attended, tile * q_.rows());
  Grow(context.key, tile * k_.rows());
  Grow(context.value, tile * v_.rows());
  Grow(context.gate, tile * gate_.rows());
  Grow(context.up, tile * up_.rows());
  Grow(context.rounded, context.pool.threads() * 2 * context.layout.row_bytes());
  for (size_t begin = 0; begin < rows.size(); begin += kTileRows) {
    RunTile(context, rows.subspan(begin, kTileRows));
  }
}

void NativeLayer::RunTile(NativeContext& context, absl::Span<const LayerRow> rows) const {
  ProjectQueryKeyValue(context, rows);
  RotateAndKeep(context, rows);
  context.Attend(rows);
  const Product output[] = {{&o_, context.added.data()}};
  context.Multiply(context.attended.data(), rows.size(), output);
  FeedForward(context, rows);
}

void NativeLayer::ProjectQueryKeyValue(NativeContext& context,
                                       absl::Span<const LayerRow> rows) const {
  context.ForEachRow(rows.size(), [&](size_t row, uint32_t) {
    context.kernels.rms_norm(rows[row].hidden, attn_norm_.data(), hidden_size_, eps_,
                             context.normed.data() + row * hidden_size_);
  });
  const Product products[] = {
      {&q_, context.query.data()}, {&k_, context.key.data()}, {&v_, context.value.data()}};
  context.Multiply(context.normed.data(), rows.size(), products);
}

void NativeLayer::RotateAndKeep(NativeContext& context, absl::Span<const LayerRow> rows) const {
  const StepKernels& kernels = context.kernels;
  const auto round = kernels.round[static_cast<size_t>(context.layout.dtype)];
  const size_t row_bytes = context.layout.row_bytes();
  context.ForEachRow(rows.size(), [&](size_t row, uint32_t worker) {
    float* query = context.query.data() + row * q_.rows();
    float* key = context.key.data() + row * k_.rows();
    float* value = context.value.data() + row * v_.rows();
    kernels.add(query, q_bias_.data(), q_bias_.size());
    kernels.add(key, k_bias_.data(), k_bias_.size());
    kernels.add(value, v_bias_.data(), v_bias_.size());
    kernels.rotate(rows[row].cos_sin, rope_half_, heads_, head_dim_, query);
    kernels.rotate(rows[row].cos_sin, rope_half_, kv_heads_, head_dim_, key);
    uint8_t* rounded_key = context.rounded.data() + worker * 2 * row_bytes;
    uint8_t* rounded_value = rounded_key + row_bytes;
    const size_t saturated =
        round(key, k_.rows(), rounded_key) + round(value, v_.rows(), rounded_value);
    if (saturated > 0) context.kv_saturated.fetch_add(saturated, std::memory_order_relaxed);
    rows[row].state->Put(rows[row].position, rounded_key, rounded_value);
  });
}

void NativeLayer::FeedForward(NativeContext& context, absl::Span<const LayerRow> rows) const {
  const StepKernels& kernels = context.kernels;
  context.ForEachRow(rows.size(), [&](size_t row, uint32_t) {
    kernels.add(rows[row].hidden, context.added.data() + row * hidden_size_, hidden_size_);
    kernels.rms_norm(rows[row].hidden, ffn_norm_.data(), hidden_size_, eps_,
                     context.normed.data() + row * hidden_size_);
  });
  const Product products[] = {{&gate_, context.gate.data()}, {&up_, context.up.data()}};
  context.Multiply(context.normed.data(), rows.size(), products);
  context.ForEachRow(rows.size(), [&](size_t row, uint32_t) {
    const size_t at = row * gate_.rows();
    kernels.silu_multiply(context.gate.data() + at, context.up.data() + at, gate_.rows());
  });
  const Product down[] = {{&down_, context.added.data()}};
  context.Multiply(context.gate.data(), rows.size(), down);
  context.ForEachRow(rows.size(), [&](size_t row, uint32_t) {
    kernels.add(rows[row].hidden, context.added.data() + row * hidden_size_, hidden_size_);
  });
}

}  // namespace kvmesh::shard
