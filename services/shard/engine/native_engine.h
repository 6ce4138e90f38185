// Layers by the project's own kernels: packed weights, 32-bit activations, one order for every
// reduction. Formulas and names as in transformers' LlamaDecoderLayer and Qwen2DecoderLayer.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/layer_range.h"
#include "common/model/model.h"
#include "services/shard/core/engine.h"
#include "services/shard/engine/decoder_engine.h"

namespace kvmesh::shard {

// Packs the weights of `layers` (with the embedding if they begin at 0, norm and head if they end
// at the end) on all threads; `model` may be let go afterwards.
// Errors of CheckEngineRequest, NumericsNamed, Model::Find and PackedMatrix::Pack;
// ResourceExhausted: no memory.
absl::StatusOr<std::unique_ptr<Engine>> MakeNativeEngine(const model::Model& model,
                                                         LayerRange layers,
                                                         const EngineOptions& options);

}  // namespace kvmesh::shard
