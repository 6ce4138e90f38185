// The arithmetic of a range of layers, behind the engine that keeps order: own kernels
// (native_engine.h) or libtorch (torch_engine.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "services/shard/engine/key_value_state.h"

namespace kvmesh::shard {

// One row of one session, as all layers see it.
struct LayerRow {
  float* hidden = nullptr;         // [hidden_size], read and replaced
  const float* cos_sin = nullptr;  // [rope dims], as RopeAngles makes them
  uint64_t position = 0;
  KeyValueState* state = nullptr;  // of the layer that is run; has room for `position`
};

// Used by one thread at a time. Everything may throw std::exception.
class LayerBackend {
 public:
  virtual ~LayerBackend() = default;

  // The embedding of `token`, [hidden_size]. Only in a range that begins with the first layer.
  virtual void Embed(uint32_t token, float* out) const = 0;

  // Runs `rows` through `layer` (absolute); rows of one session are consecutive, in order of
  // position.
  virtual void RunLayer(uint32_t layer, absl::Span<const LayerRow> rows) = 0;

  // Final norm and output matrix, [rows, hidden_size] -> [rows, vocab_size]. Only in a range that
  // ends with the last layer.
  virtual void Logits(const float* hidden, size_t rows, float* out) = 0;

  // Bytes of weights in memory.
  virtual uint64_t weight_bytes() const = 0;

  // Keys and values so far that were beyond the largest number of the KV dtype. Any thread.
  virtual uint64_t kv_saturated() const = 0;
};

}  // namespace kvmesh::shard
