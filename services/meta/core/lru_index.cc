#include "services/meta/core/lru_index.h"

namespace kvmesh::meta {

void LruIndex::Add(const Entry& entry, uint64_t bytes) {
  Of(entry).insert({.last_used_ms = entry.last_used_ms, .group = entry.group});
  bytes_ += bytes;
}

void LruIndex::Remove(const Entry& entry, uint64_t bytes) {
  Of(entry).erase({.last_used_ms = entry.last_used_ms, .group = entry.group});
  bytes_ -= bytes;
}

std::optional<GroupIndex> LruIndex::Oldest() const {
  if (!fragments_.empty()) return fragments_.begin()->group;
  if (!rows_.empty()) return rows_.begin()->group;
  return std::nullopt;
}

}  // namespace kvmesh::meta
