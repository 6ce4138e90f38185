// CRC32C (Castagnoli, reflected, start and final value all ones; RFC 3720 B.4), by ISA-L.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace kvmesh::slab {

// The CRC of all bytes so far followed by `bytes`, where `crc` is that of the bytes so far (0 for
// none).
uint32_t ExtendCrc32c(uint32_t crc, absl::string_view bytes);

inline uint32_t Crc32c(absl::string_view bytes) {
  return ExtendCrc32c(0, bytes);
}

// The CRC of A followed by B, from the CRCs of A and of B and the length of B. So one pass over a
// payload yields the CRCs of its pieces, of its regions and of the whole.
uint32_t CombineCrc32c(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

}  // namespace kvmesh::slab
