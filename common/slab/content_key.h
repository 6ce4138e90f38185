// Names of stored state: the content key, the block hash and the text that both are made of
// (DESIGN §5.1, §5.3).
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/base/sha256.h"

namespace kvmesh::slab {

// What besides the text decides whether stored state may serve a prompt. In a slab the first and
// the last are 32 bytes; the key's definition takes any length.
struct KeyNamespace {
  std::string model_fp;
  std::string quant;
  std::string ctx_params;
  friend bool operator==(const KeyNamespace&, const KeyNamespace&) = default;
};

// A running SHA-256 over the three fields, each behind its length as u64, and then the text bare:
// one pass over a text yields the keys of all its prefixes. Copyable; not thread-safe.
class ContentKeyHasher {
 public:
  explicit ContentKeyHasher(const KeyNamespace& key_namespace);
  void Update(absl::string_view text) { hash_.Update(text); }
  // Of the text so far; more may follow.
  Sha256Digest Key() const { return hash_.Digest(); }

 private:
  Sha256 hash_;
};

Sha256Digest ContentKey(const KeyNamespace& key_namespace, absl::string_view text);

// The first 8 bytes, little-endian, of the key of the text's first ⌊length / 1024⌋ KiB: under it
// an index files the text.
uint64_t BlockHash(const KeyNamespace& key_namespace, absl::string_view text);
// How many bytes of a text of this length its block hash covers.
constexpr uint64_t BlockHashedBytes(uint64_t text_bytes) {
  return text_bytes / 1024 * 1024;
}

// FNV-1a, 32 bits, of the bytes behind those that the block hash covers. No name: an index looks
// with it for candidates among the texts filed under one block hash before it recomputes a key.
uint32_t TailHash(absl::string_view text);

// The hash of a tail followed by one more byte. Starts at kTailHashEmpty.
inline constexpr uint32_t kTailHashEmpty = 2166136261U;
constexpr uint32_t ExtendTailHash(uint32_t hash, char byte) {
  return (hash ^ static_cast<uint8_t>(byte)) * 16777619U;
}

// Appends what one token contributes to a text: its raw bytes with 0xFF as 0xFF 0x00; a control
// token as 0xFF 0x01 and its id, so that no user text spells it.
void AppendPiece(absl::string_view piece, std::string* text);
void AppendControlToken(uint32_t token_id, std::string* text);

}  // namespace kvmesh::slab
