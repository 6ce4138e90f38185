// Goes through all groups, or those of one namespace, some at a time. Groups that come meanwhile
// may be missed. Not thread-safe.
#pragma once

#include <algorithm>
#include <optional>

#include "services/meta/core/ledger.h"

namespace kvmesh::meta {

class GroupWalk {
 public:
  // Visits at most a step's number of groups of `only` (none: of all). Whether all were gone
  // through.
  template <typename Visit>
  bool Step(const Ledger& ledger, std::optional<NamespaceId> only, Visit visit) {
    const SlabTable& slabs = ledger.slabs;
    size_t left = ledger.limits().step_slabs * kOthersPerGroup;
    while (left > 0 && next_ < slabs.group_bound()) {
      const GroupIndex group = next_++;
      const bool its = slabs.has_group(group) &&
                       (!only.has_value() || slabs.group(group).key_namespace == *only);
      if (its) visit(group);
      left -= std::min(left, its ? kOthersPerGroup : 1);
    }
    return next_ >= slabs.group_bound();
  }

 private:
  // Groups that cost about as much to pass over as one to visit.
  static constexpr size_t kOthersPerGroup = 16;

  GroupIndex next_ = 0;
};

}  // namespace kvmesh::meta
