// The low-level SHA256_* calls are deprecated in OpenSSL 3 but are the only ones whose state is a
// plain value that can be copied per prefix without an allocation.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "common/base/sha256.h"

#include <cstring>

namespace kvmesh {

Sha256::Sha256() {
  SHA256_Init(&context_);
}

Sha256& Sha256::Update(absl::string_view bytes) {
  SHA256_Update(&context_, bytes.data(), bytes.size());
  return *this;
}

Sha256& Sha256::UpdateU32(uint32_t value) {
  uint8_t raw[4];
  for (int i = 0; i < 4; ++i) raw[i] = static_cast<uint8_t>(value >> (8 * i));
  SHA256_Update(&context_, raw, sizeof(raw));
  return *this;
}

Sha256& Sha256::UpdateU64(uint64_t value) {
  uint8_t raw[8];
  for (int i = 0; i < 8; ++i) raw[i] = static_cast<uint8_t>(value >> (8 * i));
  SHA256_Update(&context_, raw, sizeof(raw));
  return *this;
}

Sha256Digest Sha256::Digest() const {
  SHA256_CTX copy = context_;
  Sha256Digest digest;
  SHA256_Final(digest.mutable_data(), &copy);
  return digest;
}

Sha256Digest Sha256Of(absl::string_view bytes) {
  return Sha256().Update(bytes).Digest();
}

Sha256Digest TokensSha256(absl::Span<const uint32_t> tokens) {
  Sha256 sha;
  for (uint32_t id : tokens) sha.UpdateU32(id);
  return sha.Digest();
}

uint64_t PrefixDigest(const Sha256Digest& tokens_sha256) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) {
    value = value << 8 | static_cast<uint8_t>(tokens_sha256.bytes()[static_cast<size_t>(i)]);
  }
  return value;
}

}  // namespace kvmesh
