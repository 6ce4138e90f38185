#include "services/meta/core/leases.h"

#include <algorithm>

namespace kvmesh::meta {

const Leases::Lease* Leases::Find(const LeaseId& id) const {
  const auto found = leases_.find(id);
  return found == leases_.end() ? nullptr : &found->second;
}

void Leases::Add(const LeaseId& id, GroupIndex group, MonoTime expires) {
  leases_[id] = {.groups = {group}, .expires = expires};
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
  leases_.erase(found);
}

void Leases::Replace(GroupIndex from, absl::Span<const GroupIndex> to) {
  for (auto& [id, lease] : leases_) {
    const auto held = std::find(lease.groups.begin(), lease.groups.end(), from);
    if (held == lease.groups.end()) continue;
    lease.groups.erase(held);
    for (const GroupIndex group : to) {
      if (std::find(lease.groups.begin(), lease.groups.end(), group) == lease.groups.end()) {
        lease.groups.push_back(group);
      }
    }
  }
}

uint32_t Leases::CountOn(GroupIndex group) const {
  return static_cast<uint32_t>(
      std::count_if(leases_.begin(), leases_.end(), [group](const auto& entry) {
        const auto& groups = entry.second.groups;
        return std::find(groups.begin(), groups.end(), group) != groups.end();
      }));
}

}  // namespace kvmesh::meta
