#include "services/meta/core/evictions.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "services/meta/core/errors.h"

namespace kvmesh::meta {

void Evictions::Apply(const EvictRows& command) {
  if (!command.keys.empty()) {
    UnderWay eviction{.command = command};
    EvictKeys(eviction);
    ledger_.Answer(command.ticket, std::move(eviction.result));
    return;
  }
  if (under_way_.size() >= ledger_.limits().evictions_waiting_max) {
    ledger_.Answer(command.ticket,
                   TooMany("evictions under way", ledger_.limits().evictions_waiting_max,
                           "TOO_MANY_EVICTIONS"));
    return;
  }
  under_way_.push_back({.command = command});
  if (under_way_.size() == 1) GoOn();
}

void Evictions::Abandon(Ticket ticket) {
  const auto found = absl::c_find_if(
      under_way_, [ticket](const UnderWay& it) { return it.command.ticket == ticket; });
  if (found != under_way_.end()) under_way_.erase(found);
}

void Evictions::GoOn() {
  if (under_way_.empty() || !Step(under_way_.front())) return;
  ledger_.Answer(under_way_.front().command.ticket, std::move(under_way_.front().result));
  under_way_.pop_front();
}

void Evictions::EvictKeys(UnderWay& eviction) {
  std::vector<GroupIndex> groups;
  for (const Sha256Digest& key : eviction.command.keys) {
    for (GroupIndex i = ledger_.slabs.FirstOfKey(key); i != kNone;
         i = ledger_.slabs.group(i).next_of_key) {
      groups.push_back(i);
    }
  }
  absl::c_sort(groups);  // a key may be named twice
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  for (const GroupIndex group : groups) Evict(eviction, group);
}

bool Evictions::Step(UnderWay& eviction) {
  std::optional<NamespaceId> only;
  if (eviction.command.key_namespace.has_value()) {
    only = ledger_.namespaces.Find(*eviction.command.key_namespace);
    if (!only.has_value()) return true;
  }
  return eviction.walk.Step(ledger_, only, [&](GroupIndex group) { Evict(eviction, group); });
}

void Evictions::Evict(UnderWay& eviction, GroupIndex group) {
  const Group& it = ledger_.slabs.group(group);
  if (it.kind != GroupKind::kRow && it.kind != GroupKind::kFragment) return;
  if (ledger_.now - absl::Milliseconds(it.last_used_ms) < eviction.command.idle_min) return;
  EvictResult& result = eviction.result;
  if (it.leases > 0) {
    ++result.pinned_count;
    return;
  }
  ++result.row_count;
  for (const SlabIndex slab : ledger_.slabs.SlabsOf(group)) {
    result.size_bytes += ledger_.slabs.slab(slab).bytes();
  }
  if (result.rows.size() < ledger_.limits().evicted_listed_max) {
    result.rows.push_back(rows_.Snapshot(group));
  }
  if (!eviction.command.dry_run) rows_.Doom(group, GoneCause::kOperator);
}

}  // namespace kvmesh::meta
