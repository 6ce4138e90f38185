// Executes layers [begin, end) of one model on batches of rows. What is behind it (libtorch, own
// kernels, the toy model of the tests) is invisible to the rest of the shard.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/layer_range.h"
#include "common/model/config.h"
#include "common/slab/format.h"
#include "services/shard/core/layer_state.h"

namespace kvmesh::shard {

struct StateBytes {
  model::LayerKind kind = model::LayerKind::kKeyValue;
  uint32_t layers = 0;           // of this kind, in the engine's range
  uint64_t bytes_per_token = 0;  // all those layers together
  uint64_t bytes_fixed = 0;      // per session
};

struct EngineInfo {
  model::ModelConfig config;
  LayerRange layers;
  std::string quant;                         // weight and KV dtype, e.g. "q4_1/kv-f16"
  slab::DType kv_dtype = slab::DType::kF32;  // of keys and values in canonical form
  std::string numerics_id;                   // order and rounding of all arithmetic
  bool supports_kv_cache = true;
  uint32_t block_tokens = 0;  // state grows by blocks of this many tokens
  std::vector<StateBytes> state_bytes;
  uint64_t weight_bytes = 0;       // of the tensors it owns, as stored
  uint64_t weight_bytes_held = 0;  // in memory
};

// Rows of one session in one step. Filled by the caller, outputs by Step.
struct StepItem {
  // In.
  SessionState* state = nullptr;      // null: stateless; past_len is then 0
  uint64_t past_len = 0;              // tokens whose state is held
  absl::Span<const uint32_t> tokens;  // [rows]
  absl::Span<const float>
      hidden;                // [rows, hidden_size]; empty at the first stage: it embeds the tokens
  bool want_logits = false;  // only where the range ends with the last layer
  const std::atomic<bool>* cancel = nullptr;  // looked at between layers; may be null

  // Out. Buffers are kept: an item that is used again costs no allocation.
  absl::Status status;  // of this item alone
  std::vector<float>
      hidden_out;  // [rows, hidden_size], after the range's last layer, before the final norm
  std::vector<float> logits;  // [vocab_size] of the last row, if wanted
};

// Not thread-safe: one thread calls Step and Logits.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;

  // Fresh state for the engine's layers.
  virtual SessionState NewState() const = 0;

  // Runs every item and sets its status: Cancelled (its state is then unusable), ResourceExhausted
  // (no memory), Internal. Items do not affect one another. A failed item's state must be dropped.
  virtual void Step(absl::Span<StepItem> batch) = 0;

  // Final norm and output matrix for one hidden row, [hidden_size] -> [vocab_size]: how a tail
  // answers from a stored row. FailedPrecondition: the range does not end with the last layer.
  virtual absl::StatusOr<std::vector<float>> Logits(absl::Span<const float> hidden) = 0;

  // Numbers so far that were beyond the largest of the KV dtype and became that one. Any thread.
  virtual uint64_t kv_saturated() const { return 0; }
};

}  // namespace kvmesh::shard
