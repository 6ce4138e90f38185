// Memory straight from the system, on huge pages where it has them: what is streamed from memory
// pays for every page that it walks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvmesh::shard {

inline constexpr size_t kHugePage = size_t{2} << 20;

constexpr size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// `bytes`, a multiple of kHugePage, from a multiple of kHugePage on. Zeros; pages that are never
// touched cost no memory. Null, and errno says why, if the system gives none. Throws
// std::bad_alloc. Thread-safe.
std::shared_ptr<uint8_t> MapHugePages(size_t bytes);

}  // namespace kvmesh::shard
