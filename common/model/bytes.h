// Little-endian numbers from bytes, with every bound checked. Pure.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/types/span.h"

namespace kvmesh::model {

static_assert(std::endian::native == std::endian::little, "model files are read as they lie");

template <typename T>
T LoadUnaligned(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

inline std::optional<uint64_t> CheckedMultiply(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// Walks forward through `bytes`; what does not fit leaves it where it is.
class ByteReader {
 public:
  explicit ByteReader(absl::Span<const uint8_t> bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  template <typename T>
  std::optional<T> Read() {
    if (remaining() < sizeof(T)) return std::nullopt;
    const T value = LoadUnaligned<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return value;
  }

  std::optional<absl::Span<const uint8_t>> Take(uint64_t count) {
    if (count > remaining()) return std::nullopt;
    const absl::Span<const uint8_t> taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

 private:
  absl::Span<const uint8_t> bytes_;
  uint64_t position_ = 0;
};

}  // namespace kvmesh::model
