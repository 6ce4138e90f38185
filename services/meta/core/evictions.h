// Rows that an operator gives up. Whole namespaces go in steps, between which other commands run;
// the answer comes with the last one. Not thread-safe.
#pragma once

#include <deque>
#include <optional>

#include "services/meta/core/group_walk.h"
#include "services/meta/core/rows.h"

namespace kvmesh::meta {

class Evictions {
 public:
  Evictions(Ledger& ledger, Rows& rows) : ledger_(ledger), rows_(rows) {}

  void Apply(const EvictRows& command);
  // What has not gone yet stays.
  void Abandon(Ticket ticket);

  // Goes on with the first one.
  void GoOn();
  bool HasMore() const { return !under_way_.empty(); }

 private:
  struct UnderWay {
    EvictRows command;
    EvictResult result;
    GroupWalk walk;
  };

  void EvictKeys(UnderWay& eviction);
  // Whether all groups were gone through.
  bool Step(UnderWay& eviction);
  void Evict(UnderWay& eviction, GroupIndex group);

  Ledger& ledger_;
  Rows& rows_;
  std::deque<UnderWay> under_way_;
};

}  // namespace kvmesh::meta
