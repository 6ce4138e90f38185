// A contiguous run of a model's layers.
#pragma once

#include <cstdint>

namespace kvmesh {

// Half-open, absolute layer numbers.
struct LayerRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t size() const { return end - begin; }
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

}  // namespace kvmesh
