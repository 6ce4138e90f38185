// The engine that the flags ask for.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/layer_range.h"
#include "common/model/model.h"
#include "services/shard/core/engine.h"
#include "services/shard/engine/decoder_engine.h"

namespace kvmesh::shard {

// options.numerics: "torch" for libtorch, anything else for the project's own kernels. `model` must
// outlive the engine. InvalidArgument: a device for own kernels, which run on the processor. Errors
// of MakeNativeEngine and MakeTorchEngine.
absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const model::Model& model, LayerRange layers,
                                                   const EngineOptions& options);

}  // namespace kvmesh::shard
