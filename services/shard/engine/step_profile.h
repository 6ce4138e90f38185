// Where the time of steps goes, for benchmarks: an engine of own kernels that is given a profile
// adds to it. Written by the thread of Step, and read between steps.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace kvmesh::shard {

struct StepCosts {
  absl::Duration products;            // of matrices, the rounding of activations included
  absl::Duration attention;           // without the projections
  uint64_t weight_bytes = 0;          // packed, of all matrices multiplied with
  uint64_t float_operations = 0;      // of products with f32 activations
  uint64_t word_operations = 0;       // of products with 16-bit activations
  uint64_t attended_bytes = 0;        // keys and values, once for each row
  uint64_t attention_operations = 0;  // of scores and weighted values
};

struct StepProfile {
  const Clock& clock;
  StepCosts costs;
};

}  // namespace kvmesh::shard
