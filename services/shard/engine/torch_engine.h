// Layers by libtorch alone, operation by operation: the oracle that the project's own kernels are
// held against, and the way to other devices. Weights stay as the model maps them and are widened
// tile by tile. Formulas and names as in transformers' LlamaDecoderLayer and Qwen2DecoderLayer.
// Its numerics id is "torch": rows of unlike batches differ in their last bits, so that ids are
// equal up to near ties only.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/layer_range.h"
#include "common/model/model.h"
#include "services/shard/core/engine.h"
#include "services/shard/engine/decoder_engine.h"

namespace kvmesh::shard {

inline constexpr char kTorchNumerics[] = "torch";

// `model` must outlive the engine, which reads its mapped tensors. Of the options, numerics is not
// looked at. Errors of CheckEngineRequest and Model::Find; InvalidArgument: no name of a device;
// FailedPrecondition: libtorch lacks the device; Unimplemented: a weights cache.
absl::StatusOr<std::unique_ptr<Engine>> MakeTorchEngine(const model::Model& model,
                                                        LayerRange layers,
                                                        const EngineOptions& options);

}  // namespace kvmesh::shard
