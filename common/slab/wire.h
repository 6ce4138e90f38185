// Little-endian numbers in byte strings: how the slab format writes them. Internal to common/slab.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace kvmesh::slab::wire {

template <typename T>
void Put(T value, std::string* out) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) {
    out->push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
}

// The number at `offset`; the caller has checked that it lies within `bytes`.
template <typename T>
T Get(absl::string_view bytes, size_t offset) {
  static_assert(std::is_unsigned_v<T>);
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[offset + i])) << (8 * i);
  }
  return static_cast<T>(value);
}

// Takes from the front; every take can fail and then takes nothing.
class Cursor {
 public:
  explicit Cursor(absl::string_view bytes) : rest_(bytes) {}
  template <typename T>
  std::optional<T> Take() {
    if (rest_.size() < sizeof(T)) return std::nullopt;
    const T value = Get<T>(rest_, 0);
    rest_.remove_prefix(sizeof(T));
    return value;
  }
  std::optional<absl::string_view> TakeBytes(uint64_t count) {
    if (rest_.size() < count) return std::nullopt;
    const absl::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  bool empty() const { return rest_.empty(); }
  size_t size() const { return rest_.size(); }

 private:
  absl::string_view rest_;
};

}  // namespace kvmesh::slab::wire
