#include "services/shard/engine/kernels/pack_blocks.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace kvmesh::shard {
namespace {

using model::WeightType;

template <typename T>
T LoadAt(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// 16 bytes: the low nibbles are codes 0..15 of 32, the high ones 16..31.
void ReadNibbleHalves(const uint8_t* bytes, size_t half, uint8_t* codes) {
  for (size_t i = 0; i < half; ++i) {
    codes[i] = bytes[i] & 0xF;
    codes[i + half] = bytes[i] >> 4;
  }
}

void ReadFifthBits(const uint8_t* bytes, uint8_t* codes) {
  const auto bits = LoadAt<uint32_t>(bytes);
  for (size_t i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>(((bits >> i) & 1) << 4);
}

void ReadQ5(const uint8_t* src, BlockFields& f) {  // behind the halves
  ReadNibbleHalves(src + 4, 16, f.codes.data());
  ReadFifthBits(src, f.codes.data());
}

// Two bits each: 128 codes of each 32 bytes, by shift and then by byte.
void ReadPairs(const uint8_t* bytes, uint8_t* codes) {
  for (size_t i = 0; i < 256; ++i) {
    codes[i] = (bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
  }
}

void ReadQ2_K(const uint8_t* src, BlockFields& f) {
  for (size_t group = 0; group < 16; ++group) {
    f.scales[group] = src[group] & 0xF;
    f.mins[group] = src[group] >> 4;
  }
  ReadPairs(src + 16, f.codes.data());
  f.d = LoadAt<uint16_t>(src + 80);
  f.m = LoadAt<uint16_t>(src + 82);
}

void ReadQ3_K(const uint8_t* src, BlockFields& f) {
  ReadPairs(src + 32, f.codes.data());
  for (size_t i = 0; i < 256; ++i) {
    f.codes[i] |= static_cast<uint8_t>(((src[i % 32] >> (i / 32)) & 1) << 2);
  }
  const uint8_t* packed = src + 96;
  for (size_t i = 0; i < 16; ++i) {
    const int low = i < 8 ? packed[i] & 0xF : packed[i - 8] >> 4;
    const int high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
    f.scales[i] = static_cast<uint8_t>(low | high << 4);
  }
  f.d = LoadAt<uint16_t>(src + 108);
}

// Eight pairs of 6-bit numbers of Q4_K and Q5_K (ggml: get_scale_min_k4).
void ReadScalesAndMins(const uint8_t* packed, BlockFields& f) {
  for (size_t i = 0; i < 4; ++i) {
    f.scales[i] = packed[i] & 63;
    f.mins[i] = packed[i + 4] & 63;
    f.scales[i + 4] = static_cast<uint8_t>((packed[i + 8] & 0xF) | (packed[i] >> 6) << 4);
    f.mins[i + 4] = static_cast<uint8_t>((packed[i + 8] >> 4) | (packed[i + 4] >> 6) << 4);
  }
}

void ReadQ4_K(const uint8_t* src, BlockFields& f) {
  f.d = LoadAt<uint16_t>(src);
  f.m = LoadAt<uint16_t>(src + 2);
  ReadScalesAndMins(src + 4, f);
  for (size_t pair = 0; pair < 4; ++pair) {
    ReadNibbleHalves(src + 16 + 32 * pair, 32, f.codes.data() + 64 * pair);
  }
}

void ReadQ5_K(const uint8_t* src, BlockFields& f) {
  f.d = LoadAt<uint16_t>(src);
  f.m = LoadAt<uint16_t>(src + 2);
  ReadScalesAndMins(src + 4, f);
  for (size_t pair = 0; pair < 4; ++pair) {
    ReadNibbleHalves(src + 48 + 32 * pair, 32, f.codes.data() + 64 * pair);
  }
  for (size_t i = 0; i < 256; ++i) {
    f.codes[i] |= static_cast<uint8_t>(((src[16 + i % 32] >> (i / 32)) & 1) << 4);
  }
}

void ReadQ6_K(const uint8_t* src, BlockFields& f) {
  for (size_t half = 0; half < 2; ++half) {
    const uint8_t* low = src + 64 * half;
    const uint8_t* high = src + 128 + 32 * half;
    for (size_t i = 0; i < 128; ++i) {
      const int nibble = i < 64 ? low[i] & 0xF : low[i - 64] >> 4;
      const int bits = (high[i % 32] >> (i / 32 * 2)) & 3;
      f.codes[128 * half + i] = static_cast<uint8_t>(nibble | bits << 4);
    }
  }
  std::memcpy(f.scales.data(), src + 192, 16);
  f.d = LoadAt<uint16_t>(src + 208);
}

void ReadIQ4_XS(const uint8_t* src, BlockFields& f) {
  f.d = LoadAt<uint16_t>(src);
  const auto high = LoadAt<uint16_t>(src + 2);
  for (size_t group = 0; group < 8; ++group) {
    const int low = (src[4 + group / 2] >> (4 * (group % 2))) & 0xF;
    f.scales[group] = static_cast<uint8_t>(low | ((high >> (2 * group)) & 3) << 4);
    ReadNibbleHalves(src + 8 + 16 * group, 16, f.codes.data() + 32 * group);
  }
}

void StoreWord(uint8_t* words, size_t index, size_t lane, uint32_t value) {
  std::memcpy(words + (index * kPanelRows + lane) * sizeof(value), &value, sizeof(value));
}
uint32_t LoadWord(const uint8_t* words, size_t index, size_t lane) {
  return LoadAt<uint32_t>(words + (index * kPanelRows + lane) * sizeof(uint32_t));
}

// The codes of one unit.
inline void StoreUnit(const PanelLayout& layout, const uint8_t* codes, size_t lane, uint8_t* unit) {
  const uint32_t low_mask = (uint32_t{1} << layout.low_bits) - 1;
  uint32_t high = 0;
  if (layout.high_bits > 0) {
    for (size_t i = 0; i < layout.unit(); ++i) {
      high |= (uint32_t{codes[i]} >> layout.low_bits) << layout.high_bit_of(i);
    }
    StoreWord(unit, 0, lane, high);
  }
  for (size_t word = 0; word < layout.unit() / layout.chunk(); ++word) {
    uint32_t low = 0;
    for (size_t i = 0; i < layout.chunk(); ++i) {
      low |= (codes[word * layout.chunk() + i] & low_mask) << (layout.low_bits * i);
    }
    StoreWord(unit + layout.high_bytes(), word, lane, low);
  }
}

void LoadUnit(const PanelLayout& layout, const uint8_t* unit, size_t lane, uint8_t* codes) {
  const uint32_t low_mask = (uint32_t{1} << layout.low_bits) - 1;
  const uint32_t high_mask = (uint32_t{1} << layout.high_bits) - 1;
  const uint32_t high = layout.high_bits > 0 ? LoadWord(unit, 0, lane) : 0;
  for (size_t i = 0; i < layout.unit(); ++i) {
    const uint32_t low = LoadWord(unit + layout.high_bytes(), i / layout.chunk(), lane);
    const uint32_t code = ((low >> (i % layout.chunk() * layout.low_bits)) & low_mask) |
                          ((high >> layout.high_bit_of(i)) & high_mask) << layout.low_bits;
    codes[i] = static_cast<uint8_t>(code);
  }
}

// One byte of each group, or shared by several groups, from `section` on.
uint8_t& ByteOf(uint8_t* section, size_t index, size_t lane) {
  return section[index * kPanelRows + lane];
}
uint8_t ByteOf(const uint8_t* section, size_t index, size_t lane) {
  return section[index * kPanelRows + lane];
}

inline void StoreScales(const PanelLayout& layout, const BlockFields& f, size_t lane,
                        uint8_t* block) {
  uint8_t* low = block + layout.scales_offset();
  uint8_t* high = block + layout.scales_high_offset();
  for (size_t g = 0; g < layout.groups(); ++g) {
    const int scale = f.scales[g];
    const int min = f.mins[g];
    switch (layout.scales) {
      case Scales::kBlock:
        break;
      case Scales::kSigned8:
        ByteOf(low, g, lane) = f.scales[g];
        break;
      case Scales::kFour:
        ByteOf(low, g, lane) = static_cast<uint8_t>(scale | min << 4);
        break;
      case Scales::kSix:
        ByteOf(low, g / 2, lane) |= static_cast<uint8_t>((scale & 0xF) << (4 * (g % 2)));
        ByteOf(high, g / 4, lane) |= static_cast<uint8_t>((scale >> 4) << (2 * (g % 4)));
        break;
      case Scales::kSixAndMin:
        ByteOf(low, g, lane) = static_cast<uint8_t>((scale & 0xF) | (min & 0xF) << 4);
        ByteOf(high, g / 2, lane) |=
            static_cast<uint8_t>((scale >> 4 | (min >> 4) << 2) << (4 * (g % 2)));
        break;
    }
  }
}

void LoadScales(const PanelLayout& layout, const uint8_t* block, size_t lane, BlockFields& f) {
  const uint8_t* low = block + layout.scales_offset();
  const uint8_t* high = block + layout.scales_high_offset();
  for (size_t g = 0; g < layout.groups(); ++g) {
    int scale = 0;
    int min = 0;
    switch (layout.scales) {
      case Scales::kBlock:
        break;
      case Scales::kSigned8:
        scale = ByteOf(low, g, lane);
        break;
      case Scales::kFour:
        scale = ByteOf(low, g, lane) & 0xF;
        min = ByteOf(low, g, lane) >> 4;
        break;
      case Scales::kSix:
        scale = ((ByteOf(low, g / 2, lane) >> (4 * (g % 2))) & 0xF) |
                ((ByteOf(high, g / 4, lane) >> (2 * (g % 4))) & 3) << 4;
        break;
      case Scales::kSixAndMin: {
        const int bits = ByteOf(high, g / 2, lane) >> (4 * (g % 2));
        scale = (ByteOf(low, g, lane) & 0xF) | (bits & 3) << 4;
        min = (ByteOf(low, g, lane) >> 4) | ((bits >> 2) & 3) << 4;
        break;
      }
    }
    f.scales[g] = static_cast<uint8_t>(scale);
    f.mins[g] = static_cast<uint8_t>(min);
  }
}

}  // namespace

void ReadStoredBlock(WeightType type, const uint8_t* stored, BlockFields& fields) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      return;  // no blocks
    case WeightType::kQ8_0:
      fields.d = LoadAt<uint16_t>(stored);
      std::memcpy(fields.codes.data(), stored + 2, 32);
      return;
    case WeightType::kQ4_0:
    case WeightType::kIQ4_NL:
      fields.d = LoadAt<uint16_t>(stored);
      return ReadNibbleHalves(stored + 2, 16, fields.codes.data());
    case WeightType::kQ4_1:
      fields.d = LoadAt<uint16_t>(stored);
      fields.m = LoadAt<uint16_t>(stored + 2);
      return ReadNibbleHalves(stored + 4, 16, fields.codes.data());
    case WeightType::kQ5_0:
      fields.d = LoadAt<uint16_t>(stored);
      return ReadQ5(stored + 2, fields);
    case WeightType::kQ5_1:
      fields.d = LoadAt<uint16_t>(stored);
      fields.m = LoadAt<uint16_t>(stored + 2);
      return ReadQ5(stored + 4, fields);
    case WeightType::kQ2_K:
      return ReadQ2_K(stored, fields);
    case WeightType::kQ3_K:
      return ReadQ3_K(stored, fields);
    case WeightType::kQ4_K:
      return ReadQ4_K(stored, fields);
    case WeightType::kQ5_K:
      return ReadQ5_K(stored, fields);
    case WeightType::kQ6_K:
      return ReadQ6_K(stored, fields);
    case WeightType::kIQ4_XS:
      return ReadIQ4_XS(stored, fields);
  }
}

namespace {

// With a layout that the compiler knows: packing takes most of the time of a load.
template <WeightType kType>
void StoreTyped(const BlockFields& fields, size_t lane, uint8_t* block) {
  constexpr PanelLayout kLayout = LayoutOf(kType);
  if constexpr (kLayout.quantised()) {
    std::memcpy(block + 2 * lane, &fields.d, sizeof(fields.d));
    if constexpr (kLayout.has_min) {
      std::memcpy(block + kLayout.m_offset() + 2 * lane, &fields.m, sizeof(fields.m));
    }
    StoreScales(kLayout, fields, lane, block);
    uint8_t* unit = block + kLayout.codes_offset();
    for (size_t i = 0; i < kLayout.block; i += kLayout.unit(), unit += kLayout.unit_bytes()) {
      StoreUnit(kLayout, fields.codes.data() + i, lane, unit);
    }
  }
}

using StoreFunction = void (*)(const BlockFields& fields, size_t lane, uint8_t* block);

template <size_t... kTypes>
constexpr std::array<StoreFunction, sizeof...(kTypes)> StoreFunctions(
    std::index_sequence<kTypes...> types) {
  return {StoreTyped<static_cast<WeightType>(kTypes)>...};
}

}  // namespace

void StorePanelBlock(WeightType type, const BlockFields& fields, size_t lane, uint8_t* block) {
  static constexpr auto kFunctions =
      StoreFunctions(std::make_index_sequence<model::kWeightTypeCount>());
  kFunctions[static_cast<size_t>(type)](fields, lane, block);
}

void LoadPanelBlock(const PanelLayout& layout, const uint8_t* block, size_t lane,
                    BlockFields& fields) {
  fields = {};
  fields.d = LoadAt<uint16_t>(block + 2 * lane);
  if (layout.has_min) fields.m = LoadAt<uint16_t>(block + layout.m_offset() + 2 * lane);
  LoadScales(layout, block, lane, fields);
  const uint8_t* unit = block + layout.codes_offset();
  for (size_t i = 0; i < layout.block; i += layout.unit(), unit += layout.unit_bytes()) {
    LoadUnit(layout, unit, lane, fields.codes.data() + i);
  }
}

float GroupScale(const PanelLayout& layout, const BlockFields& fields, size_t group) {
  const float d = HalfToFloat(fields.d);
  switch (layout.scales) {
    case Scales::kBlock:
      return d;
    case Scales::kSigned8:
      return d * static_cast<float>(static_cast<int8_t>(fields.scales[group]));
    case Scales::kSix:
      return d * static_cast<float>(fields.scales[group] - 32);
    case Scales::kFour:
    case Scales::kSixAndMin:
      return d * static_cast<float>(fields.scales[group]);
  }
  return d;
}

float GroupMin(const PanelLayout& layout, const BlockFields& fields, size_t group) {
  const float m = HalfToFloat(fields.m);
  if (layout.scales == Scales::kBlock) return m;
  return -(m * static_cast<float>(fields.mins[group]));
}

float CodeValue(const PanelLayout& layout, uint8_t code) {
  if (layout.is_table) return kIQ4Values[code];
  if (layout.low_bits == 8) return static_cast<int8_t>(code);
  return static_cast<float>(int{code} - int{layout.zero});
}

float HalfToFloat(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  float magnitude = std::ldexp(static_cast<float>(exponent == 0 ? fraction : 1024 + fraction),
                               exponent == 0 ? -24 : exponent - 25);
  if (exponent == 31) {
    magnitude = fraction == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  }
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace kvmesh::shard
