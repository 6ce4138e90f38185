#include "services/meta/core/leases.h"

#include <algorithm>

namespace kvmesh::meta {

const Leases::Lease* Leases::Find(const LeaseId& id) const {
  const auto found = leases_.find(id);
  return found == leases_.end() ? nullptr : &found->second;
}

void Leases::Add(const LeaseId& id, GroupIndex group, MonoTime expires) {
  leases_[id] = {.groups = {group}, .expires = expires};
  by_group_[group].push_back(id);
  expiry_.Add(expires, id);
}

void Leases::Refresh(const LeaseId& id, MonoTime expires) {
  Lease& lease = leases_[id];
  expiry_.Remove(lease.expires, id);
  lease.expires = expires;
  expiry_.Add(expires, id);
}

void Leases::Remove(const LeaseId& id) {
  const auto found = leases_.find(id);
  if (found == leases_.end()) return;
  expiry_.Remove(found->second.expires, id);
  for (const GroupIndex group : found->second.groups) Unlink(group, id);
  leases_.erase(found);
}

void Leases::Unlink(GroupIndex group, const LeaseId& id) {
  const auto held = by_group_.find(group);
  auto& ids = held->second;
  ids.erase(std::find(ids.begin(), ids.end(), id));
  if (ids.empty()) by_group_.erase(held);
}

void Leases::Replace(GroupIndex from, absl::Span<const GroupIndex> to) {
  const auto held = by_group_.find(from);
  if (held == by_group_.end()) return;
  const auto ids = std::move(held->second);
  by_group_.erase(held);
  for (const LeaseId& id : ids) {
    auto& groups = leases_.at(id).groups;
    groups.erase(std::find(groups.begin(), groups.end(), from));
    for (const GroupIndex group : to) {
      if (std::find(groups.begin(), groups.end(), group) != groups.end()) continue;
      groups.push_back(group);
      by_group_[group].push_back(id);
    }
  }
}

uint32_t Leases::CountOn(GroupIndex group) const {
  const auto held = by_group_.find(group);
  return held == by_group_.end() ? 0 : static_cast<uint32_t>(held->second.size());
}

}  // namespace kvmesh::meta
