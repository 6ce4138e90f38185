// Widening of each weight type; block layouts and formulas are ggml's (ggml-common.h,
// dequantize_row_* in ggml-quants.c). The inner loops have constant lengths and no branches, so
// that the compiler vectorises them. Compiled without contraction to fused multiply-add: every
// processor gives the same bits.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/types/span.h"
#include "common/model/bytes.h"
#include "common/model/weights.h"

// One copy of each row function per level of the x86-64 instruction sets, chosen when the program
// starts. Not under sanitizers, whose run-time is not up yet when the choice is made, and not with
// clang.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KVMESH_PER_CPU __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define KVMESH_PER_CPU
#endif
#define KVMESH_INLINE inline __attribute__((always_inline))

namespace kvmesh::model {
namespace {

constexpr int kSmallBlock = 32;
constexpr int kSuperBlock = 256;

// IEEE half to single, exact for all values, without a branch (after M. Dukhan's FP16 library,
// fp16_ieee_to_fp32_value).
KVMESH_INLINE float HalfToFloat(uint16_t half) {
  const uint32_t word = uint32_t{half} << 16;
  const uint32_t sign = word & 0x80000000u;
  const uint32_t twice = word + word;
  const float normal = std::bit_cast<float>((twice >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
  const float subnormal = std::bit_cast<float>((twice >> 17) | (126u << 23)) - 0.5f;
  const uint32_t magnitude =
      twice < (1u << 27) ? std::bit_cast<uint32_t>(subnormal) : std::bit_cast<uint32_t>(normal);
  return std::bit_cast<float>(sign | magnitude);
}

KVMESH_INLINE float HalfAt(const uint8_t* bytes) {
  return HalfToFloat(LoadUnaligned<uint16_t>(bytes));
}

// Eight lanes at a time, for the types where the compiler's own vectorisation of loops of sixteen
// is poor. Passed by reference and inlined: vectors never cross a call.
using Bytes8 = uint8_t __attribute__((vector_size(8)));
using Ints8 = int32_t __attribute__((vector_size(32)));
using Floats8 = float __attribute__((vector_size(32)));

KVMESH_INLINE void Load8(const uint8_t* src, Bytes8* bytes) {
  std::memcpy(bytes, src, sizeof(*bytes));
}

// out[i] = (q[i] - zero) * scale + offset
KVMESH_INLINE void Store8(const Ints8& q, int zero, float scale, float offset, float* out) {
  const Floats8 values = __builtin_convertvector(q - zero, Floats8) * scale + offset;
  std::memcpy(out, &values, sizeof(values));
}

KVMESH_INLINE void Store8(const Ints8& q, int zero, float scale, float* out) {
  const Floats8 values = __builtin_convertvector(q - zero, Floats8) * scale;
  std::memcpy(out, &values, sizeof(values));
}

// The low nibbles of eight bytes, and the high ones.
KVMESH_INLINE void Nibbles8(const uint8_t* src, Ints8* low, Ints8* high) {
  Bytes8 bytes;
  Load8(src, &bytes);
  *low = __builtin_convertvector(bytes & 0xF, Ints8);
  *high = __builtin_convertvector(bytes >> 4, Ints8);
}

// The eight lowest bits of `bits`, each as the fifth bit of a number.
KVMESH_INLINE void FifthBits8(uint32_t bits, Ints8* q) {
  const Ints8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
  const Ints8 all = Ints8{} + static_cast<int32_t>(bits & 0xFF);
  *q |= ((all >> lane) & 1) << 4;
}

void RowF32(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  std::memcpy(out, src, count * sizeof(float));
}

KVMESH_PER_CPU void RowF16(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = HalfAt(src + 2 * i);
}

KVMESH_PER_CPU void RowBF16(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(uint32_t{LoadUnaligned<uint16_t>(src + 2 * i)} << 16);
  }
}

KVMESH_PER_CPU void RowQ8_0(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSmallBlock; ++block, src += 34, out += kSmallBlock) {
    const float d = HalfAt(src);
    const auto* q = reinterpret_cast<const int8_t*>(src + 2);
    for (int i = 0; i < kSmallBlock; ++i) out[i] = static_cast<float>(q[i]) * d;
  }
}

KVMESH_PER_CPU void RowQ4_0(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSmallBlock; ++block, src += 18, out += kSmallBlock) {
    const float d = HalfAt(src);
    for (int i = 0; i < 16; i += 8) {
      Ints8 low;
      Ints8 high;
      Nibbles8(src + 2 + i, &low, &high);
      Store8(low, 8, d, out + i);
      Store8(high, 8, d, out + i + 16);
    }
  }
}

KVMESH_PER_CPU void RowQ4_1(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSmallBlock; ++block, src += 20, out += kSmallBlock) {
    const float d = HalfAt(src);
    const float m = HalfAt(src + 2);
    for (int i = 0; i < 16; i += 8) {
      Ints8 low;
      Ints8 high;
      Nibbles8(src + 4 + i, &low, &high);
      Store8(low, 0, d, m, out + i);
      Store8(high, 0, d, m, out + i + 16);
    }
  }
}

KVMESH_PER_CPU void RowQ5_0(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSmallBlock; ++block, src += 22, out += kSmallBlock) {
    const float d = HalfAt(src);
    const auto fifth = LoadUnaligned<uint32_t>(src + 2);
    for (int i = 0; i < 16; i += 8) {
      Ints8 low;
      Ints8 high;
      Nibbles8(src + 6 + i, &low, &high);
      FifthBits8(fifth >> i, &low);
      FifthBits8(fifth >> (i + 16), &high);
      Store8(low, 16, d, out + i);
      Store8(high, 16, d, out + i + 16);
    }
  }
}

KVMESH_PER_CPU void RowQ5_1(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSmallBlock; ++block, src += 24, out += kSmallBlock) {
    const float d = HalfAt(src);
    const float m = HalfAt(src + 2);
    const auto fifth = LoadUnaligned<uint32_t>(src + 4);
    for (int i = 0; i < 16; i += 8) {
      Ints8 low;
      Ints8 high;
      Nibbles8(src + 8 + i, &low, &high);
      FifthBits8(fifth >> i, &low);
      FifthBits8(fifth >> (i + 16), &high);
      Store8(low, 0, d, m, out + i);
      Store8(high, 0, d, m, out + i + 16);
    }
  }
}

KVMESH_PER_CPU void RowQ2_K(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSuperBlock; ++block, src += 84) {
    const uint8_t* scales = src;
    const float d = HalfAt(src + 80);
    const float dmin = HalfAt(src + 82);
    for (int group = 0; group < 16; ++group, out += 16) {  // 16 values each
      const uint8_t* q = src + 16 + (group / 8) * 32 + (group % 2) * 16;
      const int shift = 2 * ((group % 8) / 2);
      const float scale = d * static_cast<float>(scales[group] & 0xF);
      const float min = dmin * static_cast<float>(scales[group] >> 4);
      for (int i = 0; i < 16; ++i) out[i] = scale * static_cast<float>((q[i] >> shift) & 3) - min;
    }
  }
}

// The sixteen 6-bit scales of Q3_K: four low bits in bytes 0..7, two high bits in bytes 8..11.
KVMESH_INLINE std::array<int, 16> ScalesOfQ3_K(const uint8_t* packed) {
  std::array<int, 16> scales;
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? packed[i] & 0xF : packed[i - 8] >> 4;
    const int high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
    scales[i] = (low | high << 4) - 32;
  }
  return scales;
}

KVMESH_PER_CPU void RowQ3_K(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSuperBlock; ++block, src += 110) {
    const std::array<int, 16> scales = ScalesOfQ3_K(src + 96);
    const float d = HalfAt(src + 108);
    for (int group = 0; group < 16; ++group, out += 16) {
      const uint8_t* high = src + (group % 2) * 16;
      const uint8_t* q = src + 32 + (group / 8) * 32 + (group % 2) * 16;
      const int shift = 2 * ((group % 8) / 2);
      const int bit = group / 2;
      const float scale = d * static_cast<float>(scales[group]);
      for (int i = 0; i < 16; ++i) {
        const int value = ((q[i] >> shift) & 3) + ((high[i] >> bit) & 1) * 4 - 4;
        out[i] = scale * static_cast<float>(value);
      }
    }
  }
}

struct ScaleAndMin {
  int scale;
  int min;
};

// The j-th pair of 6-bit numbers of Q4_K and Q5_K (ggml: get_scale_min_k4).
KVMESH_INLINE ScaleAndMin ScaleAndMinAt(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 0xF) | (packed[j - 4] >> 6) << 4, (packed[j + 4] >> 4) | (packed[j] >> 6)
                                                                                        << 4};
}

KVMESH_PER_CPU void RowQ4_K(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSuperBlock; ++block, src += 144) {
    const float d = HalfAt(src);
    const float dmin = HalfAt(src + 2);
    for (int pair = 0; pair < 4; ++pair, out += 64) {
      const uint8_t* q = src + 16 + 32 * pair;
      const ScaleAndMin low = ScaleAndMinAt(src + 4, 2 * pair);
      const ScaleAndMin high = ScaleAndMinAt(src + 4, 2 * pair + 1);
      const float scale0 = d * static_cast<float>(low.scale);
      const float min0 = dmin * static_cast<float>(low.min);
      const float scale1 = d * static_cast<float>(high.scale);
      const float min1 = dmin * static_cast<float>(high.min);
      for (int i = 0; i < 32; ++i) out[i] = scale0 * static_cast<float>(q[i] & 0xF) - min0;
      for (int i = 0; i < 32; ++i) out[i + 32] = scale1 * static_cast<float>(q[i] >> 4) - min1;
    }
  }
}

KVMESH_PER_CPU void RowQ5_K(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSuperBlock; ++block, src += 176) {
    const float d = HalfAt(src);
    const float dmin = HalfAt(src + 2);
    const uint8_t* high_bits = src + 16;
    for (int pair = 0; pair < 4; ++pair, out += 64) {
      const uint8_t* q = src + 48 + 32 * pair;
      const ScaleAndMin low = ScaleAndMinAt(src + 4, 2 * pair);
      const ScaleAndMin high = ScaleAndMinAt(src + 4, 2 * pair + 1);
      const float scale0 = d * static_cast<float>(low.scale);
      const float min0 = dmin * static_cast<float>(low.min);
      const float scale1 = d * static_cast<float>(high.scale);
      const float min1 = dmin * static_cast<float>(high.min);
      for (int i = 0; i < 32; ++i) {
        const int value = (q[i] & 0xF) | ((high_bits[i] >> (2 * pair)) & 1) << 4;
        out[i] = scale0 * static_cast<float>(value) - min0;
      }
      for (int i = 0; i < 32; ++i) {
        const int value = (q[i] >> 4) | ((high_bits[i] >> (2 * pair + 1)) & 1) << 4;
        out[i + 32] = scale1 * static_cast<float>(value) - min1;
      }
    }
  }
}

KVMESH_PER_CPU void RowQ6_K(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSuperBlock; ++block, src += 210) {
    const auto* scales = reinterpret_cast<const int8_t*>(src + 192);
    const float d = HalfAt(src + 208);
    for (int half = 0; half < 2; ++half, scales += 8, out += 128) {
      for (int i = 0; i < 32; i += 8) {
        Bytes8 first;
        Bytes8 second;
        Bytes8 high;
        Load8(src + 64 * half + i, &first);
        Load8(src + 64 * half + 32 + i, &second);
        Load8(src + 128 + 32 * half + i, &high);
        const Bytes8 parts[4] = {(first & 0xF) | (high & 3) << 4,
                                 (second & 0xF) | (high & 0xC) << 2, (first >> 4) | (high & 0x30),
                                 (second >> 4) | (high & 0xC0) >> 2};
        for (int part = 0; part < 4; ++part) {
          const int group = 2 * part + i / 16;
          const float scale = d * static_cast<float>(scales[group]);
          Store8(__builtin_convertvector(parts[part], Ints8), 32, scale, out + 32 * part + i);
        }
      }
    }
  }
}

constexpr std::array<float, 16> kIQ4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};

KVMESH_PER_CPU void RowIQ4_NL(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSmallBlock; ++block, src += 18, out += kSmallBlock) {
    const float d = HalfAt(src);
    const uint8_t* q = src + 2;
    for (int i = 0; i < 16; ++i) out[i] = d * kIQ4Values[q[i] & 0xF];
    for (int i = 0; i < 16; ++i) out[i + 16] = d * kIQ4Values[q[i] >> 4];
  }
}

KVMESH_PER_CPU void RowIQ4_XS(const uint8_t* __restrict src, float* __restrict out, size_t count) {
  for (size_t block = 0; block < count / kSuperBlock; ++block, src += 136) {
    const float d = HalfAt(src);
    const auto high = LoadUnaligned<uint16_t>(src + 2);
    for (int group = 0; group < 8; ++group, out += 32) {
      const uint8_t* q = src + 8 + 16 * group;
      const int low_bits = (src[4 + group / 2] >> (4 * (group % 2))) & 0xF;
      const int scale_bits = low_bits | ((high >> (2 * group)) & 3) << 4;
      const float scale = d * static_cast<float>(scale_bits - 32);
      for (int i = 0; i < 16; ++i) out[i] = scale * kIQ4Values[q[i] & 0xF];
      for (int i = 0; i < 16; ++i) out[i + 16] = scale * kIQ4Values[q[i] >> 4];
    }
  }
}

using RowFunction = void (*)(const uint8_t* __restrict, float* __restrict, size_t);

RowFunction RowFunctionOf(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return RowF32;
    case WeightType::kF16:
      return RowF16;
    case WeightType::kBF16:
      return RowBF16;
    case WeightType::kQ8_0:
      return RowQ8_0;
    case WeightType::kQ4_0:
      return RowQ4_0;
    case WeightType::kQ4_1:
      return RowQ4_1;
    case WeightType::kQ5_0:
      return RowQ5_0;
    case WeightType::kQ5_1:
      return RowQ5_1;
    case WeightType::kQ2_K:
      return RowQ2_K;
    case WeightType::kQ3_K:
      return RowQ3_K;
    case WeightType::kQ4_K:
      return RowQ4_K;
    case WeightType::kQ5_K:
      return RowQ5_K;
    case WeightType::kQ6_K:
      return RowQ6_K;
    case WeightType::kIQ4_NL:
      return RowIQ4_NL;
    case WeightType::kIQ4_XS:
      return RowIQ4_XS;
  }
  return nullptr;
}

}  // namespace

void Dequantize(WeightType type, absl::Span<const uint8_t> src, absl::Span<float> out) {
  const WeightTypeInfo& info = InfoOf(type);
  if (out.size() % info.block_size != 0 ||
      src.size() != out.size() / info.block_size * info.block_bytes) {
    std::fprintf(stderr, "Dequantize: %zu bytes do not hold %zu numbers of the type given\n",
                 src.size(), out.size());
    std::abort();  // a caller's bug, as a CHECK; this library does without a logging library
  }
  if (!out.empty()) RowFunctionOf(type)(src.data(), out.data(), out.size());
}

}  // namespace kvmesh::model
