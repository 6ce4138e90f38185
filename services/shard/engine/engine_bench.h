// Measures one engine that runs all layers of a model, without a mesh around it: what a mesh's
// figures are held against, and the bounds of the machine beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/model/model.h"
#include "services/shard/engine/decoder_engine.h"
#include "services/shard/engine/machine_bounds.h"
#include "services/shard/engine/step_profile.h"

namespace kvmesh::shard {

struct EngineBenchOptions {
  EngineOptions engine;  // of own kernels; `profile` is the benchmark's
  uint32_t prompt_tokens = 512;
  uint32_t decode_tokens = 128;
  uint32_t sessions = 1;  // decoded side by side, a row each in every step
  uint32_t rounds = 1;    // each with fresh sessions
};

// What was timed: how long it took, and where the time went.
struct TimedWork {
  absl::Duration time;
  StepCosts costs;
};

struct EngineBenchResult {
  std::string numerics_id;
  InstructionSet set = InstructionSet::kAvx2;
  uint32_t threads = 0;
  absl::Duration load;             // until the weights are packed
  absl::Duration first_token;      // from the start to the first logits, of a short prompt
  uint64_t peak_memory_bytes = 0;  // of the process, until then
  uint64_t weight_bytes = 0;       // packed
  std::vector<TimedWork> prefill;  // one for each prompt
  std::vector<TimedWork> decode;   // one for each step of all sessions
  MachineBounds bounds;
};

// Loads, then `rounds` times prefills the prompt of each session in chunks as a mesh does and
// decodes greedily; measures the bounds of the machine before and after.
// InvalidArgument: no prompt, no round or no session, or more tokens than the model's context.
// Errors of NumericsNamed, MakeEngine, Engine::Step and MeasureBounds.
absl::StatusOr<EngineBenchResult> MeasureEngine(const model::Model& model,
                                                const EngineBenchOptions& options,
                                                const Clock& clock);

}  // namespace kvmesh::shard
