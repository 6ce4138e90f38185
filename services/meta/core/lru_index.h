// What one store may give up, in the order in which it would: fragments first, each kind least
// recently used first. Leased rows and those that are being written are not in it. Not thread-safe.
// Invariant: bytes() is the sum over its entries.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/btree_set.h"
#include "services/meta/core/slab_table.h"

namespace kvmesh::meta {

class LruIndex {
 public:
  struct Entry {
    bool fragment = false;
    int64_t last_used_ms = 0;
    GroupIndex group = kNone;
  };
  // `bytes`: what the group's live slabs in this store take. Remove wants what Add was given.
  void Add(const Entry& entry, uint64_t bytes);
  void Remove(const Entry& entry, uint64_t bytes);

  // The next victim; none: the store holds nothing that may go.
  std::optional<GroupIndex> Oldest() const;
  uint64_t bytes() const { return bytes_; }

 private:
  // Four bytes less than with the time as one number.
  struct Place {
    uint32_t used_high;
    uint32_t used_low;
    GroupIndex group;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  static Place PlaceOf(const Entry& entry);
  absl::btree_set<Place>& Of(const Entry& entry) { return entry.fragment ? fragments_ : rows_; }

  absl::btree_set<Place> fragments_;
  absl::btree_set<Place> rows_;
  uint64_t bytes_ = 0;
};

}  // namespace kvmesh::meta
