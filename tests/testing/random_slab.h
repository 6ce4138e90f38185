// Slabs of random state, and small ones by size, for tests and benchmarks. The same seed gives the
// same bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/slab/writer.h"

namespace kvmesh::testing {

struct RandomSlabOptions {
  uint64_t seed = 1;
  LayerRange layers{0, 3};
  uint32_t token_count = 70;
  uint32_t row_values = 8;  // kv_heads · head_dim
  uint32_t window = 32;
  bool mixed_kinds = false;  // else key/value only
  bool last_output = true;
  uint32_t align_tokens = 16;  // of cut points; only without mixed kinds
};

// A slab and the state it was made of.
struct RandomSlab {
  std::vector<std::string> layers;  // bytes of each, in layer order
  std::string bytes;
  slab::SlabMeta meta;
};

RandomSlab MakeRandomSlab(const RandomSlabOptions& options);

// One layer of key/value state with a payload of `payload_bytes` (a multiple of 4096).
RandomSlab MakeSlabOfSize(uint64_t seed, uint64_t payload_bytes);

// The same text, layers and state under another write_id.
RandomSlab WithWriteId(const RandomSlab& slab, const WriteId& write_id);

// What every test slab has in common; ids and text fit one another.
slab::SlabMeta RandomMeta(uint64_t seed, LayerRange layers, uint32_t token_count);

}  // namespace kvmesh::testing
