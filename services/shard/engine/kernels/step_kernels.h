// What a step does beside matrix products: norms, activations, rounding of keys and values and of
// what products read, attention. Compiled once for AVX2 and once for AVX-512, with the same bits
// from both (lanes.h). Every reduction has one order, fixed by the absolute index of a feature or a
// key; how many rows or heads share a call changes the bits of none. Pure; thread-safe. NaN passes
// through.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvmesh::shard {

// The type that keys and values are rounded to before attention reads them (kv_dtype.h).
enum class KvDtype : uint8_t { kF16, kBF16, kF32 };
inline constexpr size_t kKvDtypeCount = 3;

// Tokens of one block of keys and values.
inline constexpr size_t kAttentionBlock = 64;
// Keys of one chunk. The softmax is taken chunk by chunk, and chunks are folded in order of
// position, so that chunks can be worked on at once without changing a bit. A multiple of the
// block, part of what a numerics id stands for.
inline constexpr size_t kAttentionChunk = 256;
inline constexpr size_t kAttentionChunkBlocks = kAttentionChunk / kAttentionBlock;
// Query heads (of one row or of neighbouring rows) that share each load of their keys and values.
inline constexpr size_t kAttentionQueriesMax = 6;

// Values lie in rows of whole vectors.
constexpr size_t ValueStride(size_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}

// Some queries that share the keys and values of one head.
struct AttentionHead {
  size_t key_offset = 0;                     // bytes from a block's start
  size_t value_offset = 0;                   // likewise
  size_t queries = 0;                        // 1 to kAttentionQueriesMax
  const float* packed_queries = nullptr;     // [head_dim, queries], scaled
  size_t tokens[kAttentionQueriesMax] = {};  // that each query attends: 0 to kAttentionChunk
  float* scores = nullptr;                   // scratch, [queries, kAttentionChunk]

  // Out: of each query the highest score, the sum of exp(score - highest), and the sum of values
  // weighted likewise. Untouched for a query without tokens.
  float* highest = nullptr;  // [queries]
  float* sums = nullptr;     // [queries]
  float* values = nullptr;   // [queries, ValueStride(head_dim)]
};

// Heads against one chunk of keys and values. A block holds, for each head and from the offsets
// given, keys [head_dim, kAttentionBlock] (the token innermost, so that one vector holds the scores
// of neighbouring tokens) and values [kAttentionBlock, ValueStride]. Of each block first the keys
// of all heads are read, in the order of `heads`, and later the values: neighbouring heads in order
// make runs that the processor's prefetching follows.
struct AttentionChunk {
  const uint8_t* const* blocks = nullptr;  // the chunk's; as many as the longest query reaches
  size_t head_dim = 0;
  const AttentionHead* heads = nullptr;  // [head_count]
  size_t head_count = 0;
  const uint8_t* next = nullptr;  // keys that will be read after this chunk: asked for, no more
};

// The softmax of one query over all chunks so far.
struct AttentionFold {
  float highest;
  float sum;
  float* values;  // [ValueStride(head_dim)]
};

// Where a row of rounded activations goes (activations.h): every number `height` places behind the
// one before.
struct RoundedRow {
  size_t group = 32;             // 16 or 32 neighbouring features that share a scale
  size_t chunk = 16;             // 4, 8 or 16: half a chunk lies between the codes of a pair
  size_t height = 1;             // rows that lie side by side
  int32_t* pairs = nullptr;      // [columns / 2]
  float* scales = nullptr;       // [columns / group]
  int32_t* code_sums = nullptr;  // [columns / group]
  float* sums = nullptr;         // [columns / group], of the rounded numbers
};

struct StepKernels {
  // out = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, size_t n, float eps, float* out);
  // gate = silu(gate) * up
  void (*silu_multiply)(float* gate, const float* up, size_t n);
  // x += y
  void (*add)(float* x, const float* y, size_t n);
  // Turns element i with element i + half of each of `heads` heads by the angles whose cosines and
  // then sines are given (rope.h); elements from 2 * half on stay.
  void (*rotate)(const float* cos_sin, size_t half, size_t heads, size_t head_dim, float* x);
  // Rounds to the type, to the nearest, ties to even; numbers beyond its largest become that one,
  // and are counted: the result. NaN stays NaN.
  size_t (*round[kKvDtypeCount])(const float* x, size_t n, void* out);
  // The inverse, exact.
  void (*widen[kKvDtypeCount])(const void* x, size_t n, float* out);
  // x: [columns], whole groups.
  void (*round_row)(const float* x, size_t columns, const RoundedRow& row);
  void (*attend[kKvDtypeCount])(const AttentionChunk& chunk);
  // Takes the next chunk into a fold: flash attention's update (Dao et al., 2022).
  void (*fold)(float highest, float sum, const float* values, size_t head_dim, AttentionFold* fold);
  // out = the fold's values / sum, [head_dim]
  void (*finish)(const AttentionFold& fold, size_t head_dim, float* out);
};

// The kernels for a set that the processor has (instruction_set.h).
enum class InstructionSet;
const StepKernels& StepKernelsOf(InstructionSet set);
extern const StepKernels kStepKernelsAvx2;
extern const StepKernels kStepKernelsAvx512;

}  // namespace kvmesh::shard
