// Hidden rows as the bytes that frames and slabs carry: f32, little-endian, as in memory.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace kvmesh::shard {

inline std::string BytesOf(absl::Span<const float> numbers) {
  if (numbers.empty()) return {};
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

// Bytes beyond the last whole number are left out. Memory that `numbers` has is used again.
inline void FloatsOf(absl::string_view bytes, std::vector<float>* numbers) {
  numbers->resize(bytes.size() / sizeof(float));
  if (numbers->empty()) return;
  std::memcpy(numbers->data(), bytes.data(), numbers->size() * sizeof(float));
}

}  // namespace kvmesh::shard
