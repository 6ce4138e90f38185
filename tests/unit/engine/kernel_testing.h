// What the tests of the kernels share.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "services/shard/engine/kernels/instruction_set.h"
#include "services/shard/engine/kernels/step_kernels.h"

namespace kvmesh::shard {

// Unit roundoff of f32.
inline constexpr double kRoundoff = 0x1p-24;

inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

// Compares as bits: tells -0 from 0, and holds NaN equal to the same NaN.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace kvmesh::shard
