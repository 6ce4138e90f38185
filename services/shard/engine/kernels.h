// The inner loops that are not library products: dot products with one widened weight row,
// attention of one head, norms and activations. Compiled once per level of the x86-64 instruction
// set and chosen when first used. Every reduction has 16 lanes and one order, whatever the level;
// the levels differ by fused multiply-add alone. Pure; thread-safe. NaN passes through.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvmesh::shard {

// Tokens of one block of keys and values.
inline constexpr size_t kAttentionBlock = 64;

// Query heads of one row that share their keys and values: so many at most in one call.
inline constexpr size_t kAttentionHeadsMax = 4;

// One query row of up to kAttentionHeadsMax heads against keys and values that lie in blocks. Keys
// lie with the token innermost, so that one vector holds the scores of neighbouring tokens.
struct Attention {
  const float* query;          // [heads, head_dim]
  size_t heads;                // 1 to kAttentionHeadsMax
  const float* const* blocks;  // [ceil(tokens / kAttentionBlock)]
  size_t key_offset;           // from a block's start to the keys: [head_dim, kAttentionBlock]
  size_t value_offset;         // to the values: [kAttentionBlock, head_dim]
  size_t tokens;               // attended, from position 0; at least 1
  size_t head_dim;
  float scale;           // of the scores
  float* scores;         // scratch, [heads, scores_stride]
  size_t scores_stride;  // at least tokens rounded up to kAttentionBlock
  float* out;            // [heads, head_dim]
};

struct Kernels {
  // out[r * out_stride] = dot(weights, x + r * x_stride), n elements each. The same bits for a row
  // among others as for the row alone.
  void (*dot_rows)(const float* weights, size_t n, const float* x, size_t rows, size_t x_stride,
                   float* out, size_t out_stride);
  // A head has the same bits alone and among others.
  void (*attend)(const Attention& attention);
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
