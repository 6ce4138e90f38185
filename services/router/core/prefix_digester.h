// prefix_digest of growing prefixes of one sequence, each id hashed once as long as lengths grow.
// Pure; not thread-safe.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/base/sha256.h"

namespace kvmesh::router {

class PrefixDigester {
 public:
  // Of the first `length` (<= ids.size()) ids. `ids` begins with what the calls before have seen,
  // unless Reset was called.
  uint64_t At(absl::Span<const uint32_t> ids, size_t length) {
    if (length < hashed_) Reset();
    for (; hashed_ < length; ++hashed_) running_.UpdateU32(ids[hashed_]);
    return PrefixDigest(running_.Digest());
  }
  void Reset() {
    running_ = Sha256();
    hashed_ = 0;
  }

 private:
  Sha256 running_;
  size_t hashed_ = 0;
};

}  // namespace kvmesh::router
