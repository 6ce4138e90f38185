// Incremental SHA-256 (FIPS 180-4, OpenSSL's implementation). Copying an object copies the running
// state, so that one pass over a text yields the digest of each of its prefixes.
#pragma once

#include <openssl/sha.h>

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace kvmesh {

// Not thread-safe; copyable.
class Sha256 {
 public:
  Sha256();
  Sha256& Update(absl::string_view bytes);
  Sha256& UpdateU32(uint32_t value);  // little-endian
  Sha256& UpdateU64(uint64_t value);  // little-endian
  // The digest of everything fed so far; more may be fed afterwards.
  Sha256Digest Digest() const;

 private:
  SHA256_CTX context_;
};

Sha256Digest Sha256Of(absl::string_view bytes);

// tokens_sha256 of the design: SHA-256 over the ids, four bytes each, little-endian. Empty is
// allowed.
Sha256Digest TokensSha256(absl::Span<const uint32_t> tokens);

// The first 8 bytes, little-endian: how a `prefix_digest` field carries tokens_sha256.
uint64_t PrefixDigest(const Sha256Digest& tokens_sha256);

}  // namespace kvmesh
