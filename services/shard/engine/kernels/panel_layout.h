// How packed weights lie: panels of 32 outputs, the last one filled up with zeros. A panel is a
// sequence of blocks along the features, each the 32 outputs' blocks of the model's type, taken
// apart and put together again by field, so that one vector holds the same field of neighbouring
// outputs. A block has the bytes of its 32 stored blocks, no more.
//
// Sections of a block of a quantised type, each [.., 32 outputs]:
//   d       half precision; scale of the block
//   m       half precision; if the type has minima
//   scales  codes of the groups' scales and minima, see Scales
//   codes   for every unit of features first what their codes have beyond low_bits, then the low
//           bits, in 32-bit words of neighbouring features
// A word of low bits has its `chunk` of codes in order, the first one lowest. A word of high bits
// has several chunks: of each the first half of the codes in the lower 16 bits, the second half in
// the upper ones, so that one mask takes a code from each half, of the low bits as of the high
// ones. Products read a block from front to back, which the processor's prefetching follows. f32
// and f16: [features, 32]. bf16: [features, 16] words, of which word i holds output i low and
// output i + 16 high.
//
// A weight is scale * (code - zero) + minimum, or scale * kIQ4Values[code]. The products `scale`
// and `minimum` of half precision numbers and codes are exact in f32. Formulas and codes are ggml's
// (ggml-common.h, dequantize_row_* in ggml-quants.c).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/model/weights.h"

namespace kvmesh::shard {

inline constexpr size_t kPanelRows = 32;

// Features that are summed before the sum is added to the total, where no scale says so.
inline constexpr size_t kFloatGroup = 256;

enum class Scales : uint8_t {
  kBlock,      // scale = d, minimum = m
  kSigned8,    // scale = d * int8: a byte for each group
  kFour,       // scale = d * low nibble, minimum = -m * high nibble: a byte for each group
  kSix,        // scale = d * (code - 32): low nibbles of two groups in a byte, then pairs of high
               // bits of four groups in a byte
  kSixAndMin,  // scale = d * code, minimum = -m * code: low nibbles of both in a byte for each
               // group, then a byte for two groups, with two high bits of scale and minimum each
};

struct PanelLayout {
  uint16_t block = 1;            // features of a stored block; 1: not quantised
  uint16_t group = kFloatGroup;  // features that share a scale
  uint8_t low_bits = 0;          // 2, 4 or 8; codes of 8 bits are signed
  uint8_t high_bits = 0;         // 0, 1 or 2
  uint8_t zero = 0;
  bool has_min = false;
  bool is_table = false;  // kIQ4Values
  Scales scales = Scales::kBlock;
  uint8_t element_bytes = 0;  // of types that are not quantised

  constexpr bool quantised() const { return block > 1; }
  constexpr size_t groups() const { return block / group; }
  constexpr size_t m_offset() const { return 2 * kPanelRows; }
  constexpr size_t scales_offset() const { return (has_min ? 4 : 2) * kPanelRows; }
  // Where the second part of kSix and kSixAndMin begins.
  constexpr size_t scales_high_offset() const {
    return scales_offset() + (scales == Scales::kSix ? groups() / 2 : groups()) * kPanelRows;
  }
  constexpr size_t codes_offset() const {
    switch (scales) {
      case Scales::kBlock:
        return scales_offset();
      case Scales::kSigned8:
      case Scales::kFour:
        return scales_offset() + groups() * kPanelRows;
      case Scales::kSix:
        return scales_high_offset() + groups() / 4 * kPanelRows;
      case Scales::kSixAndMin:
        return scales_high_offset() + groups() / 2 * kPanelRows;
    }
    return 0;
  }
  // Features whose high bits fill a word.
  constexpr size_t unit() const { return high_bits > 0 ? 32 / high_bits : block; }
  // Codes in a word of low bits.
  constexpr size_t chunk() const { return 32 / low_bits; }
  // Where the high bits of the index-th code of a unit stand in their word.
  constexpr int high_bit_of(size_t index) const {
    const size_t half = chunk() / 2;
    const size_t place = index / chunk() * half + index % half;  // in its half of the word
    return static_cast<int>(index % chunk() / half * 16 + place * high_bits);
  }
  // Of a unit.
  constexpr size_t high_bytes() const { return unit() * high_bits / 8 * kPanelRows; }
  constexpr size_t unit_bytes() const { return unit() * (low_bits + high_bits) / 8 * kPanelRows; }
  // Of a block of all 32 outputs.
  constexpr size_t block_bytes() const {
    if (!quantised()) return element_bytes * kPanelRows;
    return codes_offset() + block / unit() * unit_bytes();
  }
  constexpr size_t panel_bytes(size_t columns) const { return columns / block * block_bytes(); }
};

constexpr PanelLayout LayoutOf(model::WeightType type) {
  using model::WeightType;
  switch (type) {
    case WeightType::kF32:
      return {.element_bytes = 4};
    case WeightType::kF16:
    case WeightType::kBF16:
      return {.element_bytes = 2};
    case WeightType::kQ8_0:
      return {.block = 32, .group = 32, .low_bits = 8};
    case WeightType::kQ4_0:
      return {.block = 32, .group = 32, .low_bits = 4, .zero = 8};
    case WeightType::kQ4_1:
      return {.block = 32, .group = 32, .low_bits = 4, .has_min = true};
    case WeightType::kQ5_0:
      return {.block = 32, .group = 32, .low_bits = 4, .high_bits = 1, .zero = 16};
    case WeightType::kQ5_1:
      return {.block = 32, .group = 32, .low_bits = 4, .high_bits = 1, .has_min = true};
    case WeightType::kQ2_K:
      return {.block = 256, .group = 16, .low_bits = 2, .has_min = true, .scales = Scales::kFour};
    case WeightType::kQ3_K:
      return {.block = 256,
              .group = 16,
              .low_bits = 2,
              .high_bits = 1,
              .zero = 4,
              .scales = Scales::kSix};
    case WeightType::kQ4_K:
      return {
          .block = 256, .group = 32, .low_bits = 4, .has_min = true, .scales = Scales::kSixAndMin};
    case WeightType::kQ5_K:
      return {.block = 256,
              .group = 32,
              .low_bits = 4,
              .high_bits = 1,
              .has_min = true,
              .scales = Scales::kSixAndMin};
    case WeightType::kQ6_K:
      return {.block = 256,
              .group = 16,
              .low_bits = 4,
              .high_bits = 2,
              .zero = 32,
              .scales = Scales::kSigned8};
    case WeightType::kIQ4_NL:
      return {.block = 32, .group = 32, .low_bits = 4, .is_table = true};
    case WeightType::kIQ4_XS:
      return {.block = 256, .group = 32, .low_bits = 4, .is_table = true, .scales = Scales::kSix};
  }
  return {};
}

// The values of the codes of IQ4_NL and IQ4_XS (ggml: kvalues_iq4nl).
inline constexpr float kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace kvmesh::shard
