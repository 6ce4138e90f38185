// The engines that this build has, for tests that run on each of them: own kernels, and libtorch
// where it is linked.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"
#include "services/shard/engine/decoder_engine.h"

namespace kvmesh::shard {

// Numerics ids that this processor computes, the default first; "torch" last, if it is linked.
std::vector<std::string> TestNumerics();

// As MakeEngine.
absl::StatusOr<std::unique_ptr<Engine>> MakeTestEngine(const model::Model& model, LayerRange layers,
                                                       const EngineOptions& options);

}  // namespace kvmesh::shard
