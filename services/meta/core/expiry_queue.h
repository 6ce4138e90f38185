// What ends when, soonest first. The holder keeps each entry's time and gives it back to remove it.
// Not thread-safe.
#pragma once

#include <optional>
#include <utility>

#include "absl/container/btree_set.h"
#include "common/base/clock.h"

namespace kvmesh::meta {

template <typename Id>
class ExpiryQueue {
 public:
  void Add(MonoTime at, const Id& id) { entries_.emplace(at, id); }
  void Remove(MonoTime at, const Id& id) { entries_.erase({at, id}); }
  // One that is due; it stays until it is removed.
  std::optional<Id> Due(MonoTime now) const {
    if (entries_.empty() || entries_.begin()->first > now) return std::nullopt;
    return entries_.begin()->second;
  }
  // Infinite: nothing ends.
  MonoTime Next() const {
    return entries_.empty() ? absl::InfiniteDuration() : entries_.begin()->first;
  }

 private:
  absl::btree_set<std::pair<MonoTime, Id>> entries_;
};

}  // namespace kvmesh::meta
