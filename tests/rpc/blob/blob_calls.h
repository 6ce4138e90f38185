// Waits and headers of calls to a store.
#pragma once

#include <chrono>
#include <string>

#include "absl/time/time.h"
#include "services/blob/grpc/blob_codec.h"
#include "tests/testing/random_slab.h"
#include "tests/testing/wait_until.h"

namespace kvmesh::blob {

using testing::WaitUntil;

inline constexpr absl::Duration kTimeout = absl::Seconds(60);

inline std::chrono::system_clock::time_point Deadline() {
  return std::chrono::system_clock::now() + std::chrono::seconds(60);
}

inline v1::PutHeader Header(const testing::RandomSlab& slab) {
  v1::PutHeader header;
  *header.mutable_slab() = EncodeName(NameOf(slab.meta));
  header.set_tokens_sha256(std::string(slab.meta.tokens_sha256.bytes()));
  header.set_size_bytes(slab.bytes.size());
  header.set_payload_crc32c(slab.meta.payload_crc32c());
  return header;
}

}  // namespace kvmesh::blob
