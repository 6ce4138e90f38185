#include "services/meta/core/lru_index.h"

namespace kvmesh::meta {

LruIndex::Place LruIndex::PlaceOf(const Entry& entry) {
  // Times before the start are negative; with the sign turned over they come first.
  const uint64_t order = static_cast<uint64_t>(entry.last_used_ms) ^ (uint64_t{1} << 63);
  return {.used_high = static_cast<uint32_t>(order >> 32),
          .used_low = static_cast<uint32_t>(order),
          .group = entry.group};
}

void LruIndex::Add(const Entry& entry, uint64_t bytes) {
  Of(entry).insert(PlaceOf(entry));
  bytes_ += bytes;
}

void LruIndex::Remove(const Entry& entry, uint64_t bytes) {
  Of(entry).erase(PlaceOf(entry));
  bytes_ -= bytes;
}

std::optional<GroupIndex> LruIndex::Oldest() const {
  if (!fragments_.empty()) return fragments_.begin()->group;
  if (!rows_.empty()) return rows_.begin()->group;
  return std::nullopt;
}

}  // namespace kvmesh::meta
