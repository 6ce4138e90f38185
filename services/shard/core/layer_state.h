// The cache state of one session in one layer, opaque to everything but the engine that made it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/config.h"

namespace kvmesh::shard {

// Not thread-safe; one owner.
class LayerState {
 public:
  virtual ~LayerState() = default;
  virtual model::LayerKind kind() const = 0;
  // Heap bytes held now. Grows in whole blocks.
  virtual uint64_t bytes() const = 0;
};

// Indexed by absolute layer number; null for layers of other shards.
using SessionState = std::vector<std::unique_ptr<LayerState>>;

}  // namespace kvmesh::shard
