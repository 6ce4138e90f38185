#include "services/shard/engine/native_engine.h"

#include <string>
#include <utility>
#include <vector>

#include "common/base/cpu_count.h"
#include "common/base/status_macros.h"
#include "services/shard/engine/native_layer.h"
#include "services/shard/engine/numerics.h"

namespace kvmesh::shard {
namespace {

using model::WeightRole;

class NativeBackend final : public LayerBackend {
 public:
  NativeBackend(const model::ModelConfig& config, LayerRange layers, const EngineOptions& options,
                uint32_t threads, Numerics numerics);

  absl::Status Load(const model::Model& model, const EngineOptions& options);

  void Embed(uint32_t token, float* out) const override { embedding_.WidenRow(token, out); }
  void RunLayer(uint32_t layer, absl::Span<const LayerRow> rows) override {
    layers_[layer - range_.begin].Run(context_, rows);
  }
  void Logits(const float* hidden, size_t rows, float* out) override;
  uint64_t weight_bytes() const override { return weight_bytes_; }
  uint64_t kv_saturated() const override {
    return context_.kv_saturated.load(std::memory_order_relaxed);
  }

 private:
  absl::Status LoadEnds(const model::Model& model, const model::ModelDigests& digests,
                        WeightsLoader& loader);

  const LayerRange range_;
  const uint32_t layer_count_;
  const size_t hidden_size_;
  const float eps_;
  ComputePool pool_;
  NativeContext context_;
  std::vector<NativeLayer> layers_;  // of range_
  PackedMatrix embedding_;           // first stage
  std::vector<float> output_norm_;   // last stage
  PackedMatrix output_;              // last stage
  uint64_t weight_bytes_ = 0;
};

NativeBackend::NativeBackend(const model::ModelConfig& config, LayerRange layers,
                             const EngineOptions& options, uint32_t threads, Numerics numerics)
    : range_(layers),
      layer_count_(config.layer_count),
      hidden_size_(config.hidden_size),
      eps_(static_cast<float>(config.rms_norm_eps)),
      pool_(threads, [] {}),
      context_(pool_, std::move(numerics),
               {.kv_heads = config.kv_head_count,
                .head_dim = config.head_dim,
                .dtype = options.kv_dtype},
               config.head_count, options.profile) {}

absl::StatusOr<PackedMatrix> LoadMatrix(const model::Tensor& tensor, const Sha256Digest& digest,
                                        WeightsLoader& loader) {
  const MatrixSource source{.tensor = tensor};
  KVMESH_ASSIGN_OR_RETURN(std::vector<PackedMatrix> packed, loader.Load(digest, {&source, 1}));
  return std::move(packed[0]);
}

// A tied matrix is packed once where the range has both of its uses.
absl::Status NativeBackend::LoadEnds(const model::Model& model, const model::ModelDigests& digests,
                                     WeightsLoader& loader) {
  const uint8_t* embedded = nullptr;
  if (range_.begin == 0) {
    KVMESH_ASSIGN_OR_RETURN(const model::Tensor tensor, model.Find(WeightRole::kEmbedding));
    KVMESH_ASSIGN_OR_RETURN(embedding_, LoadMatrix(tensor, digests.embedding, loader));
    embedded = tensor.data.data();
    weight_bytes_ += embedding_.bytes();
  }
  if (range_.end == layer_count_) {
    KVMESH_ASSIGN_OR_RETURN(output_norm_, LoadVector(model, WeightRole::kOutputNorm));
    weight_bytes_ += output_norm_.size() * sizeof(float);
    KVMESH_ASSIGN_OR_RETURN(const model::Tensor tensor, model.Find(WeightRole::kOutput));
    if (tensor.data.data() == embedded) {
      output_ = embedding_;
      return absl::OkStatus();
    }
    KVMESH_ASSIGN_OR_RETURN(output_, LoadMatrix(tensor, digests.head, loader));
    weight_bytes_ += output_.bytes();
  }
  return absl::OkStatus();
}

absl::Status NativeBackend::Load(const model::Model& model, const EngineOptions& options) {
  // Digests name the files of the cache; without one nothing looks at them.
  model::ModelDigests digests;
  digests.layers.resize(range_.size());
  if (!options.weights_cache.empty()) {
    KVMESH_ASSIGN_OR_RETURN(digests, model.Digests(range_));
  }
  WeightsLoader loader(pool_, context_.numerics,
                       {.cache_folder = options.weights_cache,
                        .warn = options.warn,
                        .packed = [&model](const auto& tensor) { model.ReleasePages(tensor); }});
  KVMESH_RETURN_IF_ERROR(LoadEnds(model, digests, loader));
  layers_.reserve(range_.size());
  for (uint32_t layer = range_.begin; layer < range_.end; ++layer) {
    KVMESH_ASSIGN_OR_RETURN(
        NativeLayer loaded,
        NativeLayer::Load(model, layer, digests.layers[layer - range_.begin], loader));
    weight_bytes_ += loaded.weight_bytes();
    layers_.push_back(std::move(loaded));
    if (options.on_layer_loaded) options.on_layer_loaded(layer - range_.begin + 1, range_.size());
  }
  return absl::OkStatus();
}

void NativeBackend::Logits(const float* hidden, size_t rows, float* out) {
  context_.Normalise(hidden, output_norm_, eps_, rows);
  const Product products[] = {{&output_, out}};
  context_.Multiply(context_.normed.data(), rows, products);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeNativeEngine(const model::Model& model,
                                                         LayerRange layers,
                                                         const EngineOptions& options) {
  KVMESH_RETURN_IF_ERROR(CheckEngineRequest(model.config(), layers, options));
  KVMESH_ASSIGN_OR_RETURN(Numerics numerics, NumericsNamed(options.numerics));
  const std::string id = numerics.id;
  const uint32_t threads = options.threads != 0 ? options.threads : UsableCpuCount();
  std::unique_ptr<Engine> engine;
  KVMESH_RETURN_IF_ERROR(Guarded([&]() -> absl::Status {
    auto backend = std::make_unique<NativeBackend>(model.config(), layers, options, threads,
                                                   std::move(numerics));
    KVMESH_RETURN_IF_ERROR(backend->Load(model, options));
    engine = std::make_unique<DecoderEngine>(model, layers, options, id, std::move(backend));
    return absl::OkStatus();
  }));
  return engine;
}

}  // namespace kvmesh::shard
