// Who holds which rows and fragments. A plain table: Rows keeps the count in each group and the
// order of eviction in step with it. Not thread-safe.
#pragma once

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "services/meta/core/expiry_queue.h"
#include "services/meta/core/slab_table.h"

namespace kvmesh::meta {

class Leases {
 public:
  struct Lease {
    absl::InlinedVector<GroupIndex, 1> groups;  // none: what it held is gone
    MonoTime expires;
  };

  const Lease* Find(const LeaseId& id) const;
  void Add(const LeaseId& id, GroupIndex group, MonoTime expires);
  // It is there.
  void Refresh(const LeaseId& id, MonoTime expires);
  void Remove(const LeaseId& id);

  // What held `from` holds `to` instead: a row fell into its slabs, or fragments became a row.
  void Replace(GroupIndex from, absl::Span<const GroupIndex> to);
  uint32_t CountOn(GroupIndex group) const;

  std::optional<LeaseId> Due(MonoTime now) const { return expiry_.Due(now); }
  MonoTime Next() const { return expiry_.Next(); }
  size_t size() const { return leases_.size(); }

 private:
  void Unlink(GroupIndex group, const LeaseId& id);

  absl::flat_hash_map<LeaseId, Lease> leases_;
  absl::flat_hash_map<GroupIndex, absl::InlinedVector<LeaseId, 1>> by_group_;
  ExpiryQueue<LeaseId> expiry_;
};

}  // namespace kvmesh::meta
