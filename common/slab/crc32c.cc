#include "common/slab/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>

namespace kvmesh::slab {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected: bit 31 is x^0
constexpr uint32_t kOne = 1U << 31;

// a(x) · b(x) mod P(x).
constexpr uint32_t MultiplyModP(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// x^(2^k) for every k that 8 times a 64-bit length can need.
constexpr std::array<uint32_t, 67> MakePowers() {
  std::array<uint32_t, 67> powers{};
  powers[0] = kOne >> 1;
  for (size_t k = 1; k < powers.size(); ++k) {
    powers[k] = MultiplyModP(powers[k - 1], powers[k - 1]);
  }
  return powers;
}

// x^(8 · bytes) mod P(x): what `bytes` zero bytes behind a message do to its CRC.
uint32_t ShiftBy(uint64_t bytes) {
  static constexpr std::array<uint32_t, 67> kPowers = MakePowers();
  uint32_t shift = kOne;
  for (size_t k = 3; bytes != 0; bytes >>= 1, ++k) {
    if ((bytes & 1) != 0) shift = MultiplyModP(kPowers[k], shift);
  }
  return shift;
}

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view bytes) {
  constexpr size_t kStepMax = 1U << 30;  // ISA-L takes an int
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    const size_t step = std::min(bytes.size(), kStepMax);
    // It reads only; the parameter merely lacks const.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(step), state);
    bytes.remove_prefix(step);
  }
  return ~state;
}

uint32_t CombineCrc32c(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
  return MultiplyModP(ShiftBy(length_b), crc_a) ^ crc_b;
}

}  // namespace kvmesh::slab
