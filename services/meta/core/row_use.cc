// Leases and use of rows, and what they are at this moment.
#include <algorithm>
#include <limits>
#include <map>

#include "services/meta/core/rows.h"

namespace kvmesh::meta {
namespace {

constexpr size_t kUsesPerMessage = 1000;

}  // namespace

void Rows::AddLease(GroupIndex group, const LeaseId& lease) {
  Unfile(group);
  ++slabs_.group(group).leases;
  ledger_.leases.Add(lease, group, ledger_.now + ledger_.limits().lease_ttl);
  Touch(group);
}

void Rows::EndLease(const LeaseId& lease) {
  const Leases::Lease* found = ledger_.leases.Find(lease);
  if (found == nullptr) return;
  const auto groups = found->groups;
  ledger_.leases.Remove(lease);
  for (const GroupIndex group : groups) {
    --slabs_.group(group).leases;
    File(group);
  }
}

void Rows::CountLeases(GroupIndex group) {
  slabs_.group(group).leases = ledger_.leases.CountOn(group);
}

void Rows::Touch(GroupIndex group) {
  const bool filed = slabs_.group(group).filed;
  if (filed) Unfile(group);
  Group& it = slabs_.group(group);
  it.last_used_ms = Millis(ledger_.now);
  if (it.hit_count < std::numeric_limits<uint32_t>::max()) ++it.hit_count;
  if (!it.use_to_report) {
    it.use_to_report = true;
    if (used_.empty()) {
      report_at_ = std::max(ledger_.now, reported_at_ + ledger_.limits().use_report_interval);
    }
    used_.push_back(group);
  }
  if (filed) File(group);
  if (it.kind == GroupKind::kRow) {
    ledger_.Emit(RowUsed{.row = RowId{group}, .last_used = ledger_.now});
  }
}

void Rows::ReportUse() {
  if (ledger_.now < report_at_) return;
  std::map<StoreSlot, RecordUse> by_store;
  const auto send = [this](StoreSlot slot, RecordUse* uses) {
    ledger_.Emit(ToStore{.stream = ledger_.StoreAt(slot).stream, .message = std::move(*uses)});
    uses->uses.clear();
  };
  if (reporting_.empty()) {
    reporting_.assign(used_.begin(), used_.end());
    used_.clear();
  }
  for (size_t left = ledger_.limits().step_slabs; left > 0 && !reporting_.empty(); --left) {
    const GroupIndex group = reporting_.front();
    reporting_.pop_front();
    if (!slabs_.has_group(group) || !slabs_.group(group).use_to_report) continue;
    Group& it = slabs_.group(group);
    it.use_to_report = false;
    for (const SlabIndex index : slabs_.SlabsOf(group)) {
      const Slab& slab = slabs_.slab(index);
      if (slab.state != SlabState::kLive || !ledger_.Serves(slab.store)) continue;
      RecordUse& uses = by_store[slab.store];
      uses.uses.push_back({.name = slabs_.NameOf(index),
                           .hit_count = it.hit_count,
                           .idle = ledger_.now - absl::Milliseconds(it.last_used_ms)});
      if (uses.uses.size() == kUsesPerMessage) send(slab.store, &uses);
    }
  }
  for (auto& [slot, uses] : by_store) {
    if (!uses.uses.empty()) send(slot, &uses);
  }
  if (!reporting_.empty()) return;
  reported_at_ = ledger_.now;
  report_at_ = used_.empty() ? absl::InfiniteDuration()
                             : reported_at_ + ledger_.limits().use_report_interval;
}

MonoTime Rows::NextUseReport() const {
  return report_at_;
}

// ---- Questions ----

GroupIndex Rows::RowOfKey(const Sha256Digest& key) const {
  GroupIndex group = slabs_.FirstOfKey(key);
  while (group != kNone && slabs_.group(group).kind != GroupKind::kRow) {
    group = slabs_.group(group).next_of_key;
  }
  return group;
}

bool Rows::Readable(GroupIndex group) const {
  for (SlabIndex i = slabs_.group(group).first_slab; i != kNone; i = slabs_.slab(i).next) {
    if (slabs_.slab(i).state != SlabState::kLive) return false;
    if (!ledger_.Serves(slabs_.slab(i).store)) return false;
  }
  return true;
}

PlacedSlab Rows::Place(SlabIndex slab) const {
  const Slab& it = slabs_.slab(slab);
  const Store& store = ledger_.StoreAt(it.store);
  return {.name = slabs_.NameOf(slab),
          .state = it.state,
          .slot = it.store,
          .store = store.uid,
          .address = store.address,
          .tier = store.tier,
          .size_bytes = it.bytes()};
}

RowSnapshot Rows::Snapshot(GroupIndex group) const {
  const Group& it = slabs_.group(group);
  RowSnapshot row{.id = RowId{group},
                  .key_namespace = ledger_.namespaces.Get(it.key_namespace),
                  .key = it.key,
                  .tokens_sha256 = it.tokens_sha256,
                  .token_count = it.token_count,
                  .text_bytes = it.text_bytes,
                  .hit_count = it.hit_count,
                  .leases = it.leases,
                  .idle = ledger_.now - absl::Milliseconds(it.last_used_ms)};
  switch (it.kind) {
    case GroupKind::kWriting:
      row.state = RowState::kWriting;
      break;
    case GroupKind::kRow:
      row.state = Readable(group) ? RowState::kAvailable : RowState::kStoreLost;
      break;
    case GroupKind::kFragment:
      row.state = RowState::kFragment;
      break;
    case GroupKind::kDoomed:
      row.state = RowState::kDeleting;
      break;
  }
  const std::vector<SlabIndex> slabs = slabs_.SlabsOf(group);
  row.slabs.reserve(slabs.size());
  for (const SlabIndex slab : slabs) row.slabs.push_back(Place(slab));
  return row;
}

}  // namespace kvmesh::meta
