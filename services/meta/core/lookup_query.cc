#include "services/meta/core/lookup_query.h"

#include <algorithm>

#include "common/base/sha256.h"

namespace kvmesh::meta {

LookupQuery::LookupQuery(const slab::KeyNamespace& key_namespace, absl::string_view text)
    : text_(text) {
  const uint64_t blocks = text.size() / kBlockBytes;
  states_.reserve(blocks + 1);
  states_.emplace_back(key_namespace);
  for (uint64_t block = 0; block < blocks; ++block) {
    states_.push_back(states_.back());
    states_.back().Update(text.substr(block * kBlockBytes, kBlockBytes));
  }
}

uint64_t LookupQuery::BlockHash(uint32_t blocks) const {
  return PrefixDigest(states_[blocks].Key());
}

uint32_t LookupQuery::TailBytes(uint32_t blocks) const {
  return static_cast<uint32_t>(std::min<uint64_t>(Tail(blocks).size(), kBlockBytes - 1));
}

Sha256Digest LookupQuery::Key(uint32_t blocks, uint32_t tail_bytes) const {
  slab::ContentKeyHasher hasher = states_[blocks];
  hasher.Update(Tail(blocks).substr(0, tail_bytes));
  return hasher.Key();
}

void LookupQuery::TailHashes(uint32_t blocks, absl::Span<uint32_t> hashes) const {
  const absl::string_view tail = Tail(blocks);
  uint32_t hash = slab::kTailHashEmpty;
  for (size_t n = 0; n < hashes.size(); ++n) {
    hashes[n] = hash;
    if (n < tail.size()) hash = slab::ExtendTailHash(hash, tail[n]);
  }
}

}  // namespace kvmesh::meta
