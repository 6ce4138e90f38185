// Compiled for AVX-512 (F, BW, DQ, VL).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "services/shard/engine/kernels/matmul.h"

#define KVMESH_INLINE inline __attribute__((always_inline))
#define KVMESH_INLINE_LAMBDA __attribute__((always_inline))

namespace kvmesh::shard {
namespace {

constexpr size_t kLanes = 16;
using Floats = __m512;
using Int = __m512i;

// 24 sums, and registers to spare for weights and x.
constexpr size_t kTileRows = 12;
constexpr size_t VectorsTogether(size_t rows) {
  return 2;
}
constexpr size_t GroupsTogether(size_t rows, bool short_groups) {
  return rows == 1 && short_groups ? 2 : 1;
}

KVMESH_INLINE Floats Zero() {
  return _mm512_setzero_ps();
}
KVMESH_INLINE Floats Broadcast(const float* value) {
  return _mm512_set1_ps(*value);
}
KVMESH_INLINE Floats LoadFloats(const void* at) {
  return _mm512_loadu_ps(at);
}
KVMESH_INLINE void StoreFloats(void* at, Floats values) {
  _mm512_storeu_ps(at, values);
}
KVMESH_INLINE Floats LoadHalves(const uint8_t* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
KVMESH_INLINE Floats Add(Floats a, Floats b) {
  return _mm512_add_ps(a, b);
}
KVMESH_INLINE Floats Multiply(Floats a, Floats b) {
  return _mm512_mul_ps(a, b);
}
KVMESH_INLINE Floats Negate(Floats v) {
  return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f));
}
KVMESH_INLINE Floats FusedMultiplyAdd(Floats a, Floats b, Floats c) {
  return _mm512_fmadd_ps(a, b, c);
}
KVMESH_INLINE Int LoadInts(const uint8_t* at) {
  return _mm512_loadu_si512(at);
}
KVMESH_INLINE Int LoadBytes(const uint8_t* at) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
KVMESH_INLINE Int LoadSignedBytes(const uint8_t* at) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
template <int kBits>
KVMESH_INLINE Int ShiftLeft(Int v) {
  return _mm512_slli_epi32(v, kBits);
}
template <int kBits>
KVMESH_INLINE Int ShiftRight(Int v) {
  return _mm512_srli_epi32(v, kBits);
}
template <int kBits>
KVMESH_INLINE Int ShiftRightSigned(Int v) {
  return _mm512_srai_epi32(v, kBits);
}
KVMESH_INLINE Int ShiftRightBy(Int v, int bits) {
  return _mm512_srl_epi32(v, _mm_cvtsi32_si128(bits));
}
KVMESH_INLINE Int And(Int v, int mask) {
  return _mm512_and_si512(v, _mm512_set1_epi32(mask));
}
KVMESH_INLINE Int Or(Int a, Int b) {
  return _mm512_or_si512(a, b);
}
KVMESH_INLINE Int Subtract(Int v, int value) {
  return _mm512_sub_epi32(v, _mm512_set1_epi32(value));
}
KVMESH_INLINE Floats ToFloats(Int v) {
  return _mm512_cvtepi32_ps(v);
}
KVMESH_INLINE Floats AsFloats(Int v) {
  return _mm512_castsi512_ps(v);
}
// Of the code in the lowest bits of each lane, whatever lies above them.
template <int kBits, int kZero, bool kIsTable>
KVMESH_INLINE Floats ValueOfCode(Int codes, const float* table) {
  return _mm512_permutexvar_ps(codes, _mm512_loadu_ps(table));
}

}  // namespace
}  // namespace kvmesh::shard

#define KVMESH_MATMUL_KERNELS kMatmulAvx512
#include "services/shard/engine/kernels/matmul_body.inc"
