#include "services/shard/engine/torch_engine.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/cpu_count.h"
#include "common/base/status_macros.h"
#include "services/shard/engine/torch_linear.h"
#include "services/shard/engine/weight_matrix.h"

namespace kvmesh::shard {
namespace {

using at::Tensor;
using model::WeightRole;

// The weights of one layer; vectors are on the device, a missing bias is undefined.
struct Layer {
  WeightMatrix q, k, v, o, gate, up, down;
  Tensor attn_norm, ffn_norm, q_bias, k_bias, v_bias;
};

at::ScalarType TorchTypeOf(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kF16:
      return at::kHalf;
    case KvDtype::kBF16:
      return at::kBFloat16;
    case KvDtype::kF32:
      break;
  }
  return at::kFloat;
}

// Infinite for f32, which nothing is beyond.
double LargestOf(KvDtype dtype) {
  if (dtype == KvDtype::kF16) return 65504.0;
  return dtype == KvDtype::kBF16 ? 0x1.fep127 : INFINITY;
}

Tensor Floats(const float* data, size_t rows, size_t columns, const at::Device& device) {
  // A view: libtorch only reads it.
  return at::from_blob(const_cast<float*>(data),
                       {static_cast<int64_t>(rows), static_cast<int64_t>(columns)}, at::kFloat)
      .to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  return x * at::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + eps) * weight;
}

// x: [rows, heads, head_dim]; cos, sin: [rows, 1, half].
Tensor Rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const int64_t half = cos.size(-1);
  const Tensor first = x.slice(-1, 0, half);
  const Tensor second = x.slice(-1, half, 2 * half);
  return at::cat(
      {first * cos - second * sin, second * cos + first * sin, x.slice(-1, 2 * half, x.size(-1))},
      -1);
}

class TorchBackend final : public LayerBackend {
 public:
  TorchBackend(const model::Model& model, LayerRange layers, const EngineOptions& options,
               uint32_t threads, const at::Device& device)
      : config_(model.config()),
        range_(layers),
        device_(device),
        layout_{.kv_heads = config_.kv_head_count,
                .head_dim = config_.head_dim,
                .dtype = options.kv_dtype},
        weight_bytes_(model.WeightBytes(layers)),
        pool_(threads, UseTorchOnThisThreadOnly) {}

  absl::Status Load(const model::Model& model);

  void Embed(uint32_t token, float* out) const override { embedding_.WidenRow(token, out); }
  void RunLayer(uint32_t layer, absl::Span<const LayerRow> rows) override;
  void Logits(const float* hidden, size_t rows, float* out) override;
  uint64_t weight_bytes() const override { return weight_bytes_; }
  uint64_t kv_saturated() const override { return kv_saturated_.load(std::memory_order_relaxed); }

 private:
  absl::StatusOr<Tensor> LoadVector(const model::Model& model, WeightRole role, uint32_t layer);
  absl::StatusOr<Layer> LoadLayer(const model::Model& model, uint32_t index);
  Tensor Project(const Tensor& x, const WeightMatrix& weights, const Tensor& bias);
  Tensor Attention(const Layer& layer, const Tensor& normed, absl::Span<const LayerRow> rows);
  Tensor RoundAndCount(const Tensor& x);
  Tensor AttendSession(const Tensor& query, absl::Span<const LayerRow> rows);
  Tensor FeedForward(const Layer& layer, const Tensor& normed);

  const model::ModelConfig config_;
  const LayerRange range_;
  const at::Device device_;
  const KeyValueLayout layout_;
  const uint64_t weight_bytes_;
  std::atomic<uint64_t> kv_saturated_{0};
  ComputePool pool_;
  std::vector<Layer> layers_;
  WeightMatrix embedding_;
  WeightMatrix output_;
  Tensor output_norm_;
};

absl::StatusOr<Tensor> TorchBackend::LoadVector(const model::Model& model, WeightRole role,
                                                uint32_t layer) {
  KVMESH_ASSIGN_OR_RETURN(const model::Tensor tensor, model.Find(role, layer));
  const model::WeightTypeInfo& info = model::InfoOf(tensor.type);
  std::vector<float> values(tensor.data.size() / info.block_bytes * info.block_size);
  model::Dequantize(tensor.type, tensor.data, absl::MakeSpan(values));
  return Floats(values.data(), 1, values.size(), device_);
}

absl::StatusOr<Layer> TorchBackend::LoadLayer(const model::Model& model, uint32_t index) {
  Layer layer;
  const std::pair<WeightRole, WeightMatrix*> matrices[] = {
      {WeightRole::kAttnQ, &layer.q},      {WeightRole::kAttnK, &layer.k},
      {WeightRole::kAttnV, &layer.v},      {WeightRole::kAttnO, &layer.o},
      {WeightRole::kFfnGate, &layer.gate}, {WeightRole::kFfnUp, &layer.up},
      {WeightRole::kFfnDown, &layer.down}};
  for (const auto& [role, matrix] : matrices) {
    KVMESH_ASSIGN_OR_RETURN(const model::Tensor tensor, model.Find(role, index));
    *matrix = WeightMatrix(tensor, config_.head_dim);
  }
  KVMESH_ASSIGN_OR_RETURN(layer.attn_norm, LoadVector(model, WeightRole::kAttnNorm, index));
  KVMESH_ASSIGN_OR_RETURN(layer.ffn_norm, LoadVector(model, WeightRole::kFfnNorm, index));
  if (config_.qkv_bias) {
    KVMESH_ASSIGN_OR_RETURN(layer.q_bias, LoadVector(model, WeightRole::kAttnQBias, index));
    KVMESH_ASSIGN_OR_RETURN(layer.k_bias, LoadVector(model, WeightRole::kAttnKBias, index));
    KVMESH_ASSIGN_OR_RETURN(layer.v_bias, LoadVector(model, WeightRole::kAttnVBias, index));
  }
  return layer;
}

absl::Status TorchBackend::Load(const model::Model& model) {
  const c10::InferenceMode no_autograd;
  if (range_.begin == 0) {
    KVMESH_ASSIGN_OR_RETURN(const model::Tensor tensor, model.Find(WeightRole::kEmbedding));
    embedding_ = WeightMatrix(tensor, 0);
  }
  if (range_.end == config_.layer_count) {
    KVMESH_ASSIGN_OR_RETURN(output_norm_, LoadVector(model, WeightRole::kOutputNorm, 0));
    KVMESH_ASSIGN_OR_RETURN(const model::Tensor tensor, model.Find(WeightRole::kOutput));
    output_ = WeightMatrix(tensor, 0);
  }
  layers_.reserve(range_.size());
  for (uint32_t index = range_.begin; index < range_.end; ++index) {
    KVMESH_ASSIGN_OR_RETURN(Layer layer, LoadLayer(model, index));
    layers_.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

Tensor TorchBackend::Project(const Tensor& x, const WeightMatrix& weights, const Tensor& bias) {
  Tensor out = Linear(pool_, x, weights);
  return bias.defined() ? out + bias : out;
}

// To the KV dtype, on the processor.
Tensor TorchBackend::RoundAndCount(const Tensor& x) {
  const double largest = LargestOf(layout_.dtype);
  const int64_t beyond = (x.abs() > largest).sum().item<int64_t>();
  if (beyond > 0) kv_saturated_.fetch_add(static_cast<uint64_t>(beyond));
  return x.clamp(-largest, largest).to(at::kCPU, TorchTypeOf(layout_.dtype)).contiguous();
}

Tensor TorchBackend::Attention(const Layer& layer, const Tensor& normed,
                               absl::Span<const LayerRow> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t head_dim = config_.head_dim;
  const int64_t half = config_.rope.dims / 2;
  Tensor angles = at::empty({count, 1, 2 * half}, at::kFloat);
  for (int64_t row = 0; row < count; ++row) {
    std::memcpy(angles.data_ptr<float>() + row * 2 * half, rows[row].cos_sin,
                static_cast<size_t>(2 * half) * sizeof(float));
  }
  angles = angles.to(device_);
  const Tensor cos = angles.slice(-1, 0, half);
  const Tensor sin = angles.slice(-1, half, 2 * half);
  const Tensor query =
      Rotate(Project(normed, layer.q, layer.q_bias).view({count, -1, head_dim}), cos, sin);
  const Tensor key = RoundAndCount(
      Rotate(Project(normed, layer.k, layer.k_bias).view({count, -1, head_dim}), cos, sin));
  const Tensor value = RoundAndCount(Project(normed, layer.v, layer.v_bias));
  const size_t row_bytes = layout_.row_bytes();
  for (size_t row = 0; row < rows.size(); ++row) {
    rows[row].state->Put(rows[row].position,
                         static_cast<const uint8_t*>(key.data_ptr()) + row * row_bytes,
                         static_cast<const uint8_t*>(value.data_ptr()) + row * row_bytes);
  }
  std::vector<Tensor> attended;
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    while (end < rows.size() && rows[end].state == rows[begin].state) ++end;
    attended.push_back(
        AttendSession(query.slice(0, static_cast<int64_t>(begin), static_cast<int64_t>(end)),
                      rows.subspan(begin, end - begin)));
  }
  return Linear(pool_, at::cat(attended, 0), layer.o);
}

// Rows of one session against everything that it holds: [rows, heads * head_dim].
Tensor TorchBackend::AttendSession(const Tensor& query, absl::Span<const LayerRow> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  const auto tokens = static_cast<int64_t>(rows.back().position + 1);
  const int64_t kv_heads = config_.kv_head_count;
  const int64_t head_dim = config_.head_dim;
  const int64_t group = config_.head_count / config_.kv_head_count;
  const auto stored = at::TensorOptions(TorchTypeOf(layout_.dtype));
  Tensor keys = at::empty({tokens, kv_heads, head_dim}, stored);
  Tensor values = at::empty({tokens, kv_heads, head_dim}, stored);
  for (int64_t token = 0; token < tokens; ++token) {
    const size_t at = static_cast<size_t>(token) * layout_.row_bytes();
    rows[0].state->Copy(static_cast<uint64_t>(token), static_cast<uint8_t*>(keys.data_ptr()) + at,
                        static_cast<uint8_t*>(values.data_ptr()) + at);
  }
  keys = keys.to(device_, at::kFloat);
  values = values.to(device_, at::kFloat);
  const Tensor positions = at::arange(tokens, at::TensorOptions(device_).dtype(at::kLong));
  const Tensor own = positions.slice(0, tokens - count, tokens);  // rows are consecutive
  const Tensor hidden = (positions.unsqueeze(0) > own.unsqueeze(1)).repeat_interleave(group, 0);
  std::vector<Tensor> heads;
  for (int64_t head = 0; head < kv_heads; ++head) {
    const Tensor queries =
        query.slice(1, head * group, (head + 1) * group).reshape({count * group, head_dim});
    const Tensor scores = MultiplyTransposed(queries, keys.select(1, head)) /
                          std::sqrt(static_cast<double>(head_dim));
    const Tensor weights = at::softmax(scores.masked_fill(hidden, -INFINITY), -1);
    heads.push_back(
        MultiplyTransposed(weights, values.select(1, head).t()).view({count, group * head_dim}));
  }
  return at::cat(heads, -1);
}

Tensor TorchBackend::FeedForward(const Layer& layer, const Tensor& normed) {
  const Tensor gate = at::silu(Linear(pool_, normed, layer.gate));
  return Linear(pool_, gate * Linear(pool_, normed, layer.up), layer.down);
}

void TorchBackend::RunLayer(uint32_t layer_index, absl::Span<const LayerRow> rows) {
  UseTorchOnThisThreadOnly();
  const c10::InferenceMode no_autograd;
  const Layer& layer = layers_[layer_index - range_.begin];
  const size_t hidden_size = config_.hidden_size;
  Tensor gathered =
      at::empty({static_cast<int64_t>(rows.size()), static_cast<int64_t>(hidden_size)}, at::kFloat);
  for (size_t row = 0; row < rows.size(); ++row) {
    std::memcpy(gathered.data_ptr<float>() + row * hidden_size, rows[row].hidden,
                hidden_size * sizeof(float));
  }
  Tensor hidden = gathered.to(device_);
  hidden = hidden + Attention(layer, RmsNorm(hidden, layer.attn_norm, config_.rms_norm_eps), rows);
  hidden = hidden + FeedForward(layer, RmsNorm(hidden, layer.ffn_norm, config_.rms_norm_eps));
  const Tensor result = hidden.to(at::kCPU).contiguous();
  for (size_t row = 0; row < rows.size(); ++row) {
    std::memcpy(rows[row].hidden, result.data_ptr<float>() + row * hidden_size,
                hidden_size * sizeof(float));
  }
}

void TorchBackend::Logits(const float* hidden, size_t rows, float* out) {
  UseTorchOnThisThreadOnly();
  const c10::InferenceMode no_autograd;
  const Tensor x = Floats(hidden, rows, config_.hidden_size, device_);
  const Tensor logits =
      Linear(pool_, RmsNorm(x, output_norm_, config_.rms_norm_eps), output_).to(at::kCPU);
  std::memcpy(out, logits.contiguous().data_ptr<float>(),
              rows * config_.vocab_size * sizeof(float));
}

absl::StatusOr<at::Device> DeviceNamed(const std::string& name) {
  try {
    const at::Device device(name);
    try {
      at::zeros({1}, at::TensorOptions(device));
      return device;
    } catch (const std::exception& error) {
      const std::string reason = error.what();
      return absl::FailedPreconditionError(
          absl::StrCat("libtorch cannot use the device \"", name,
                       "\" here: ", reason.substr(0, reason.find('\n'))));
    }
  } catch (const std::exception&) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is not a device of libtorch, such as cpu or cuda:0"));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeTorchEngine(const model::Model& model,
                                                        LayerRange layers,
                                                        const EngineOptions& options) {
  KVMESH_RETURN_IF_ERROR(CheckEngineRequest(model.config(), layers, options));
  if (!options.weights_cache.empty()) {
    return absl::UnimplementedError(
        "numerics torch keeps no packed weights: no cache of them can be used");
  }
  KVMESH_ASSIGN_OR_RETURN(const at::Device device, DeviceNamed(options.device));
  const uint32_t threads = options.threads != 0 ? options.threads : UsableCpuCount();
  std::unique_ptr<Engine> engine;
  KVMESH_RETURN_IF_ERROR(Guarded([&]() -> absl::Status {
    UseTorchOnThisThreadOnly();
    auto backend = std::make_unique<TorchBackend>(model, layers, options, threads, device);
    KVMESH_RETURN_IF_ERROR(backend->Load(model));
    engine =
        std::make_unique<DecoderEngine>(model, layers, options, kTorchNumerics, std::move(backend));
    return absl::OkStatus();
  }));
  return engine;
}

}  // namespace kvmesh::shard
