// Compiled for AVX2, FMA and F16C.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "services/shard/engine/kernels/matmul.h"

#define KVMESH_INLINE inline __attribute__((always_inline))
#define KVMESH_INLINE_LAMBDA __attribute__((always_inline))

namespace kvmesh::shard {
namespace {

constexpr size_t kLanes = 8;
using Floats = __m256;
using Int = __m256i;

// At most 12 sums of the 16 registers.
constexpr size_t kTileRows = 6;
constexpr size_t VectorsTogether(size_t rows) {
  return rows == 1 ? 4 : rows <= 6 ? 2 : 1;
}
constexpr size_t GroupsTogether(size_t rows, bool short_groups) {
  return 1;
}

KVMESH_INLINE Floats Zero() {
  return _mm256_setzero_ps();
}
KVMESH_INLINE Floats Broadcast(const float* value) {
  return _mm256_broadcast_ss(value);
}
KVMESH_INLINE Floats LoadFloats(const void* at) {
  return _mm256_loadu_ps(static_cast<const float*>(at));
}
KVMESH_INLINE void StoreFloats(void* at, Floats values) {
  _mm256_storeu_ps(static_cast<float*>(at), values);
}
KVMESH_INLINE Floats LoadHalves(const uint8_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
KVMESH_INLINE Floats Add(Floats a, Floats b) {
  return _mm256_add_ps(a, b);
}
KVMESH_INLINE Floats Multiply(Floats a, Floats b) {
  return _mm256_mul_ps(a, b);
}
KVMESH_INLINE Floats Negate(Floats v) {
  return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f));
}
KVMESH_INLINE Floats FusedMultiplyAdd(Floats a, Floats b, Floats c) {
  return _mm256_fmadd_ps(a, b, c);
}
KVMESH_INLINE Int LoadInts(const uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
KVMESH_INLINE Int LoadBytes(const uint8_t* at) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
}
KVMESH_INLINE Int LoadSignedBytes(const uint8_t* at) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
}
template <int kBits>
KVMESH_INLINE Int ShiftLeft(Int v) {
  return _mm256_slli_epi32(v, kBits);
}
template <int kBits>
KVMESH_INLINE Int ShiftRight(Int v) {
  return _mm256_srli_epi32(v, kBits);
}
template <int kBits>
KVMESH_INLINE Int ShiftRightSigned(Int v) {
  return _mm256_srai_epi32(v, kBits);
}
KVMESH_INLINE Int ShiftRightBy(Int v, int bits) {
  return _mm256_srl_epi32(v, _mm_cvtsi32_si128(bits));
}
KVMESH_INLINE Int And(Int v, int mask) {
  return _mm256_and_si256(v, _mm256_set1_epi32(mask));
}
KVMESH_INLINE Int Or(Int a, Int b) {
  return _mm256_or_si256(a, b);
}
KVMESH_INLINE Int Subtract(Int v, int value) {
  return _mm256_sub_epi32(v, _mm256_set1_epi32(value));
}
KVMESH_INLINE Floats ToFloats(Int v) {
  return _mm256_cvtepi32_ps(v);
}
KVMESH_INLINE Floats AsFloats(Int v) {
  return _mm256_castsi256_ps(v);
}
// Of the code in the lowest bits of each lane, whatever lies above them.
template <int kBits, int kZero, bool kIsTable>
KVMESH_INLINE Floats ValueOfCode(Int codes, const float* table) {
  if constexpr (kIsTable) {
    const Floats low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), codes);
    const Floats high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), codes);
    return _mm256_blendv_ps(low, high, AsFloats(ShiftLeft<28>(codes)));  // by bit 3
  } else {
    const Int code = And(codes, (1 << kBits) - 1);
    return ToFloats(kZero == 0 ? code : Subtract(code, kZero));
  }
}

}  // namespace
}  // namespace kvmesh::shard

#define KVMESH_MATMUL_KERNELS kMatmulAvx2
#include "services/shard/engine/kernels/matmul_body.inc"
