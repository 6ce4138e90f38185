// What a namespace may have in all stores together, and its way back to that: its own groups go,
// fragments before rows, each least recently used first (docs/arbiter.md, "Quota").
//
// A quota comes with the reservations of those who know it, and holds for the others (fragments of
// shards) as long as something is filed under the namespace. Nothing is kept per row: when a
// namespace passes its high watermark, its groups are gone through once, in steps.
// Not thread-safe.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "services/meta/core/group_walk.h"
#include "services/meta/core/rows.h"

namespace kvmesh::meta {

class Quotas {
 public:
  Quotas(Ledger& ledger, Rows& rows) : ledger_(ledger), rows_(rows) {}

  // The quota of the command's namespace, which it may say; 0: none.
  uint64_t Learn(const Reserve& command);
  // Whether `bytes` more may be reserved. ResourceExhausted QUOTA: with a delay when room for them
  // is being made; without one when they are more than `quota`.
  absl::Status Admit(const slab::KeyNamespace& key_namespace, uint64_t quota, uint64_t bytes);
  // They have been.
  void OnReserved(NamespaceId id, uint64_t quota);

  // Goes on with the first namespace that is above its target.
  void GoOn();
  bool HasMore() const { return !trims_.empty(); }

 private:
  // Fragments before rows, then by last use; the rest makes the order whole.
  using Order = std::tuple<bool, int64_t, Sha256Digest, WriteId, uint16_t, uint16_t, StoreSlot>;
  struct Candidate {
    Order order;
    GroupIndex group = kNone;
    friend bool operator<(const Candidate& a, const Candidate& b) { return a.order < b.order; }
  };
  struct Trim {
    slab::KeyNamespace key_namespace;
    uint64_t target = 0;
    GroupWalk walk;
    bool walked = false;
    bool more = false;                  // than could be kept
    std::vector<Candidate> candidates;  // while walking a heap, the last to go first; then a stack
  };

  uint64_t Held(NamespaceId id) const;
  void TrimTo(const slab::KeyNamespace& key_namespace, uint64_t target);
  // Whether it is done.
  bool Step(Trim& trim);
  void Keep(Trim& trim, GroupIndex group) const;
  std::optional<Order> OrderOf(GroupIndex group) const;

  Ledger& ledger_;
  Rows& rows_;
  std::deque<Trim> trims_;  // at most one per namespace
};

}  // namespace kvmesh::meta
