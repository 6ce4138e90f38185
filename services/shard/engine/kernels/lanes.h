// Sixteen f32 lanes, as one AVX-512 register or two AVX2 ones, with the same bits from both: every
// operation below is one IEEE operation per lane, and sums over lanes have one order. For files
// that are compiled for one instruction set each; nothing from the standard library may be
// instantiated there, or the linker could pick that copy for the whole program. Hence internal
// linkage throughout.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace kvmesh::shard {
namespace {

inline constexpr size_t kLanes = 16;

#if defined(__AVX512F__)

struct Lanes {
  __m512 v;
};
typedef __mmask16 LaneMask;

inline Lanes Load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void Store(float* p, Lanes a) {
  _mm512_storeu_ps(p, a.v);
}
inline Lanes Fill(float value) {
  return {_mm512_set1_ps(value)};
}
inline Lanes Add(Lanes a, Lanes b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Lanes Subtract(Lanes a, Lanes b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Lanes Multiply(Lanes a, Lanes b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Lanes Divide(Lanes a, Lanes b) {
  return {_mm512_div_ps(a.v, b.v)};
}
// a * b + c, rounded once.
inline Lanes MultiplyAdd(Lanes a, Lanes b, Lanes c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// c - a * b, rounded once.
inline Lanes NegativeMultiplyAdd(Lanes a, Lanes b, Lanes c) {
  return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
// `b` where either is NaN.
inline Lanes Larger(Lanes a, Lanes b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline Lanes Smaller(Lanes a, Lanes b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline Lanes Magnitude(Lanes a) {
  return {_mm512_abs_ps(a.v)};
}
inline LaneMask IsLess(Lanes a, Lanes b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ);
}
inline LaneMask FirstLanes(size_t count) {
  return static_cast<LaneMask>((1u << count) - 1);
}
inline Lanes Choose(LaneMask mask, Lanes where_set, Lanes otherwise) {
  return {_mm512_mask_blend_ps(mask, otherwise.v, where_set.v)};
}
inline size_t CountLanes(LaneMask mask) {
  return static_cast<size_t>(__builtin_popcount(mask));
}
// 2^n, from n + 1.5 * 2^23 in each lane, for n in -126 to 127.
inline Lanes PowerOfTwo(Lanes shifted) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3f800000)))};
}
inline Lanes WidenHalf(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void StoreHalf(uint16_t* p, Lanes a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline Lanes WidenBrain(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
// The eight sums of lane i and lane i + 8.
inline __m256 AddHalves(Lanes a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
inline __m256 LargerHalves(Lanes a) {
  return _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

struct Lanes {
  __m256 lo, hi;
};
struct LaneMask {
  __m256 lo, hi;
};

inline Lanes Load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void Store(float* p, Lanes a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline Lanes Fill(float value) {
  return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}
inline Lanes Add(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Lanes Subtract(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline Lanes Multiply(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline Lanes Divide(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline Lanes MultiplyAdd(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Lanes NegativeMultiplyAdd(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
inline Lanes Larger(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline Lanes Smaller(Lanes a, Lanes b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline Lanes Magnitude(Lanes a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline LaneMask IsLess(Lanes a, Lanes b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
inline LaneMask FirstLanes(size_t count) {
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(count));
  const __m256i lo = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i hi = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, lo)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, hi))};
}
inline Lanes Choose(LaneMask mask, Lanes where_set, Lanes otherwise) {
  return {_mm256_blendv_ps(otherwise.lo, where_set.lo, mask.lo),
          _mm256_blendv_ps(otherwise.hi, where_set.hi, mask.hi)};
}
inline size_t CountLanes(LaneMask mask) {
  const int bits = _mm256_movemask_ps(mask.lo) | _mm256_movemask_ps(mask.hi) << 8;
  return static_cast<size_t>(__builtin_popcount(static_cast<unsigned>(bits)));
}
inline __m256 PowerOfTwoHalf(__m256 shifted) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f800000)));
}
inline Lanes PowerOfTwo(Lanes shifted) {
  return {PowerOfTwoHalf(shifted.lo), PowerOfTwoHalf(shifted.hi)};
}
inline Lanes WidenHalf(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void StoreHalf(uint16_t* p, Lanes a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, kNearest));
}
inline __m256 WidenBrainHalf(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Lanes WidenBrain(const uint16_t* p) {
  return {WidenBrainHalf(p), WidenBrainHalf(p + 8)};
}
inline __m256 AddHalves(Lanes a) {
  return _mm256_add_ps(a.lo, a.hi);
}
inline __m256 LargerHalves(Lanes a) {
  return _mm256_max_ps(a.lo, a.hi);
}

#else
#error "compile this file for AVX2 with FMA and F16C, or for AVX-512"
#endif

// Lane i to lane i + 8, then i + 4, i + 2, i + 1.
inline float Sum(Lanes a) {
  const __m256 eight = AddHalves(a);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float Highest(Lanes a) {
  const __m256 eight = LargerHalves(a);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// exp, within 2 ulp; below -87.3 zero. Cody-Waite reduction and the polynomial of Cephes' expf (S.
// Moshier). Exp(0) is 1. NaN stays NaN.
inline Lanes Exp(Lanes x) {
  const Lanes lowest = Fill(-87.3f);
  const LaneMask vanishes = IsLess(x, lowest);
  x = Smaller(Fill(88.3f), Larger(lowest, x));
  const Lanes magic = Fill(0x1.8p23f);  // adding it rounds to an integer
  const Lanes shifted = MultiplyAdd(x, Fill(1.44269504088896341f), magic);
  const Lanes n = Subtract(shifted, magic);
  Lanes r = NegativeMultiplyAdd(n, Fill(0.693359375f), x);
  r = NegativeMultiplyAdd(n, Fill(-2.12194440e-4f), r);
  Lanes p = Fill(1.9875691500e-4f);
  p = MultiplyAdd(p, r, Fill(1.3981999507e-3f));
  p = MultiplyAdd(p, r, Fill(8.3334519073e-3f));
  p = MultiplyAdd(p, r, Fill(4.1665795894e-2f));
  p = MultiplyAdd(p, r, Fill(1.6666665459e-1f));
  p = MultiplyAdd(p, r, Fill(5.0000001201e-1f));
  p = Add(MultiplyAdd(p, Multiply(r, r), r), Fill(1.0f));
  return Choose(vanishes, Fill(0.0f), Multiply(p, PowerOfTwo(shifted)));
}

}  // namespace
}  // namespace kvmesh::shard
