// The cache state of one session in one layer, opaque to everything but the engine that made it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/config.h"

namespace kvmesh::shard {

// Not thread-safe; one owner. What a checkpoint of a layer holds is its canonical form (DESIGN §8):
// token-major, for kKeyValue the keys of all tokens and then their values, as the KV dtype has
// them.
class LayerState {
 public:
  virtual ~LayerState() = default;
  virtual model::LayerKind kind() const = 0;
  // Heap bytes held now. Grows in whole blocks.
  virtual uint64_t bytes() const = 0;
  // Tokens whose state is held.
  virtual uint64_t tokens() const = 0;

  // The first `tokens` tokens, as a state of its own that later steps do not change: full blocks
  // are shared, a last partial one is copied. Its CopyRows may be called from another thread while
  // this state goes on. OutOfRange: fewer are held. ResourceExhausted: no memory.
  virtual absl::StatusOr<std::unique_ptr<LayerState>> Snapshot(uint64_t tokens) const = 0;

  // Bytes of one token's keys in canonical form, [kv_heads, head_dim]; its values have as many.
  virtual uint64_t row_bytes() const = 0;

  // The canonical rows of tokens [begin, end), (end - begin) * row_bytes() each. OutOfRange: not
  // all are held. InvalidArgument: a span of another size.
  virtual absl::Status CopyRows(uint64_t begin, uint64_t end, absl::Span<uint8_t> keys,
                                absl::Span<uint8_t> values) const = 0;

  // Appends canonical rows, any number: restoring fills an empty state. InvalidArgument: spans that
  // differ in size, or that are not whole rows. ResourceExhausted: no memory; nothing is appended.
  virtual absl::Status AppendRows(absl::Span<const uint8_t> keys,
                                  absl::Span<const uint8_t> values) = 0;
};

// Indexed by absolute layer number; null for layers of other shards.
using SessionState = std::vector<std::unique_ptr<LayerState>>;

}  // namespace kvmesh::shard
