// The engine of this build: weights as stored, read where the model maps them; products of many
// rows by libtorch (oneDNN), of few rows by the project's own dot products; keys and values in f32.
// Llama and Qwen2 families.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/layer_range.h"
#include "common/model/model.h"
#include "services/shard/core/engine.h"

namespace kvmesh::shard {

struct TorchEngineOptions {
  uint32_t threads =
      0;  // compute threads, the caller of Step included; 0: as many as there are usable processors
  bool disable_kv_cache = false;  // info().supports_kv_cache is then false
};

// `model` must outlive the engine, which reads its mapped tensors.
// InvalidArgument: `layers` is empty or reaches beyond the model; too many threads. Unimplemented:
// a layer of a kind other than kKeyValue, by its number. ResourceExhausted: no memory. Errors of
// Model::Find.
absl::StatusOr<std::unique_ptr<Engine>> MakeTorchEngine(const model::Model& model,
                                                        LayerRange layers,
                                                        const TorchEngineOptions& options);

}  // namespace kvmesh::shard
