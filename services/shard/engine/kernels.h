// The inner loops that are not library products: dot products with one widened weight row, norms
// and activations. Compiled once per level of the x86-64 instruction
// set and chosen when first used. Every reduction has 16 lanes and one order, whatever the level;
// the levels differ by fused multiply-add alone. Pure; thread-safe. NaN passes through.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvmesh::shard {

struct Kernels {
  // out[r * out_stride] = dot(weights, x + r * x_stride), n elements each. The same bits for a row
  // among others as for the row alone.
  void (*dot_rows)(const float* weights, size_t n, const float* x, size_t rows, size_t x_stride,
                   float* out, size_t out_stride);
  // gate = silu(gate) * up
  void (*silu_multiply)(float* gate, const float* up, size_t n);
  // out = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, size_t n, float eps, float* out);
};

// The fastest that this processor runs.
const Kernels& CpuKernels();

// One for each level, for the tests; null where the processor or the build lacks it.
const Kernels* KernelsOfLevel(int level);  // 2, 3, 4: x86-64-v2, -v3, -v4
extern const Kernels kKernelsV2;
extern const Kernels kKernelsV3;
extern const Kernels kKernelsV4;

}  // namespace kvmesh::shard
