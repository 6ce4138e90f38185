// Measures one engine that runs all layers of a model, without a mesh around it: what a mesh's
// figures are held against.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/model/model.h"
#include "services/shard/engine/decoder_engine.h"

namespace kvmesh::shard {

struct EngineBenchOptions {
  EngineOptions engine;
  uint32_t prompt_tokens = 512;
  uint32_t decode_tokens = 128;
  // Sequence lengths at which one stateless step (everything run again) is timed as well.
  std::vector<uint32_t> stateless_lengths;
};

struct EngineBenchResult {
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;
  std::vector<absl::Duration> decode_steps;     // [decode_tokens], the first behind the prompt
  std::vector<absl::Duration> stateless_steps;  // one for each of stateless_lengths
};

// Prefills `prompt_tokens` in chunks as a mesh does, then decodes greedily, after a short warm-up.
// InvalidArgument: no prompt, or more tokens than the model's context. Errors of MakeEngine and of
// Engine::Step.
absl::StatusOr<EngineBenchResult> MeasureEngine(const model::Model& model,
                                                const EngineBenchOptions& options,
                                                const Clock& clock);

}  // namespace kvmesh::shard
