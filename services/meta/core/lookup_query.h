// A prompt as the index is asked for it: the block hash of each of its whole KiB, and the key and
// the tail hash of any of its prefixes, all from one pass of SHA-256 (DESIGN §5.3).
//
// Costs 112 bytes a KiB. Thread-compatible. The text must outlive the query.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/slab/content_key.h"

namespace kvmesh::meta {

inline constexpr uint32_t kBlockBytes = 1024;

class LookupQuery {
 public:
  LookupQuery(const slab::KeyNamespace& key_namespace, absl::string_view text);

  absl::string_view text() const { return text_; }
  // Whole KiB of the text. The functions below take block counts up to this one.
  uint32_t blocks() const { return static_cast<uint32_t>(states_.size() - 1); }

  // Of the first `blocks` KiB.
  uint64_t BlockHash(uint32_t blocks) const;
  // Bytes of the text behind the first `blocks` KiB, below one KiB: no text filed under that block
  // hash is longer.
  uint32_t TailBytes(uint32_t blocks) const;
  // The key of the first `blocks` KiB and `tail_bytes` more.
  Sha256Digest Key(uint32_t blocks, uint32_t tail_bytes) const;
  // hashes[n]: the tail hash of the first `blocks` KiB and n bytes more, for all n below the size,
  // which is at most TailBytes(blocks) + 1.
  void TailHashes(uint32_t blocks, absl::Span<uint32_t> hashes) const;

 private:
  absl::string_view Tail(uint32_t blocks) const {
    return text_.substr(uint64_t{blocks} * kBlockBytes);
  }

  const absl::string_view text_;
  std::vector<slab::ContentKeyHasher> states_;  // [b]: after b KiB
};

}  // namespace kvmesh::meta
