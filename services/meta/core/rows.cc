#include "services/meta/core/rows.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"

namespace kvmesh::meta {
namespace {

// What each store holds of a group.
absl::InlinedVector<std::pair<StoreSlot, uint64_t>, 2> BytesByStore(const SlabTable& slabs,
                                                                    GroupIndex group) {
  absl::InlinedVector<std::pair<StoreSlot, uint64_t>, 2> stores;
  for (SlabIndex i = slabs.group(group).first_slab; i != kNone; i = slabs.slab(i).next) {
    const Slab& slab = slabs.slab(i);
    const auto known = std::find_if(stores.begin(), stores.end(), [&slab](const auto& entry) {
      return entry.first == slab.store;
    });
    if (known == stores.end()) {
      stores.emplace_back(slab.store, slab.bytes());
    } else {
      known->second += slab.bytes();
    }
  }
  return stores;
}

}  // namespace

// ---- Groups ----

NamespaceId Rows::AcquireNamespace(const slab::KeyNamespace& key_namespace) {
  const Namespaces::Acquired acquired = ledger_.namespaces.Acquire(key_namespace);
  if (acquired.opened) {
    ledger_.Emit(NamespaceOpened{.id = acquired.id, .key_namespace = key_namespace});
  }
  return acquired.id;
}

GroupIndex Rows::CopyGroup(GroupIndex of, GroupKind kind) {
  Group copy = slabs_.group(of);
  ledger_.namespaces.Acquire(copy.key_namespace);
  copy.kind = kind;
  copy.leases = 0;
  copy.filed = copy.was_row = copy.use_to_report = false;
  return slabs_.AddGroup(copy);
}

void Rows::RemoveGroup(GroupIndex group) {
  if (slabs_.group(group).leases > 0) ledger_.leases.Replace(group, {});
  const NamespaceId id = slabs_.group(group).key_namespace;
  ledger_.Changed(slabs_.group(group).key);
  slabs_.RemoveGroup(group);
  if (ledger_.namespaces.Release(id)) ledger_.Emit(NamespaceClosed{.id = id});
}

void Rows::File(GroupIndex group) {
  Group& it = slabs_.group(group);
  if (it.filed || it.leases > 0) return;
  it.filed = true;
  const LruIndex::Entry entry{
      .fragment = it.kind == GroupKind::kFragment, .last_used_ms = it.last_used_ms, .group = group};
  for (const auto& [slot, bytes] : BytesByStore(slabs_, group)) {
    ledger_.StoreAt(slot).lru.Add(entry, bytes);
    ledger_.RoomChanged(slot);
  }
}

void Rows::Unfile(GroupIndex group) {
  Group& it = slabs_.group(group);
  if (!it.filed) return;
  it.filed = false;
  const LruIndex::Entry entry{
      .fragment = it.kind == GroupKind::kFragment, .last_used_ms = it.last_used_ms, .group = group};
  for (const auto& [slot, bytes] : BytesByStore(slabs_, group)) {
    ledger_.StoreAt(slot).lru.Remove(entry, bytes);
  }
}

// ---- Writes ----

GroupIndex Rows::OpenWrite(const slab::KeyNamespace& key_namespace, const Sha256Digest& key) {
  const NamespaceId id = AcquireNamespace(key_namespace);
  ledger_.Changed(key);
  return slabs_.AddGroup(
      Group{.key = key, .last_used_ms = Millis(ledger_.now), .key_namespace = id});
}

void Rows::AddReserved(GroupIndex write, LayerRange layers, const WriteId& write_id,
                       StoreSlot store, uint32_t pages) {
  slabs_.AddSlab(write, Slab{.write_id = write_id,
                             .pages = pages,
                             .layer_begin = static_cast<uint16_t>(layers.begin),
                             .layer_end = static_cast<uint16_t>(layers.end),
                             .store = store,
                             .state = SlabState::kReserved});
}

void Rows::CompleteWrite(GroupIndex write) {
  const GroupIndex row = RowOfKey(slabs_.group(write).key);
  const bool has_row = row != kNone && Readable(row);
  if (has_row || slabs_.group(write).ends_inside_character) {
    ledger_.Count(has_row ? "writes_surplus" : "writes_inside_character");
    SplitToFragments(write);
    return;
  }
  if (row != kNone) BreakRow(row, GoneCause::kDisplaced);
  OpenRow(write);
}

void Rows::CompleteFragment(GroupIndex write) {
  BecomeFragment(write);
}

void Rows::AdoptSlab(SlabIndex slab) {
  const GroupIndex write = slabs_.slab(slab).group;
  const GroupIndex fragment = CopyGroup(write, GroupKind::kFragment);
  slabs_.MoveSlab(slab, fragment);
  BecomeFragment(fragment);
  if (slabs_.group(write).first_slab == kNone) RemoveGroup(write);
}

void Rows::DoomReserved(GroupIndex write) {
  for (const SlabIndex slab : slabs_.SlabsOf(write)) {
    if (slabs_.slab(slab).state == SlabState::kReserved) DoomSlab(slab);
  }
}

// ---- Rows ----

void Rows::OpenRow(GroupIndex group) {
  std::vector<slab::CutPoint> cut_points = TakeCommonCutPoints(group);
  Group& row = slabs_.group(group);
  row.kind = GroupKind::kRow;
  ++rows_;
  RowOpened opened{.row = RowId{group},
                   .key_namespace = row.key_namespace,
                   .key = row.key,
                   .tokens_sha256 = row.tokens_sha256,
                   .block_hash = row.block_hash,
                   .tail_hash = row.tail_hash,
                   .token_count = row.token_count,
                   .text_bytes = row.text_bytes,
                   .last_used = absl::Milliseconds(row.last_used_ms),
                   .cut_points = std::move(cut_points)};
  for (const SlabIndex index : slabs_.SlabsOf(group)) {
    const Slab& slab = slabs_.slab(index);
    opened.slabs.push_back({.layers = slab.layers(),
                            .write_id = slab.write_id,
                            .slot = slab.store,
                            .size_bytes = slab.bytes()});
  }
  ledger_.Emit(std::move(opened));
  ledger_.Changed(row.key);
  ledger_.Count("rows_opened");
  File(group);
}

void Rows::CloseRow(GroupIndex row, GoneCause cause) {
  Unfile(row);
  const Group& it = slabs_.group(row);
  ledger_.Emit(RowClosed{.row = RowId{row}, .cause = cause, .at = ledger_.now});
  ledger_.Changed(it.key);
  ledger_.Count("rows_closed");
  --rows_;
}

void Rows::BreakRow(GroupIndex row, GoneCause cause) {
  CloseRow(row, cause);
  SplitToFragments(row);
}

void Rows::SplitToFragments(GroupIndex group) {
  const bool leased = slabs_.group(group).leases > 0;
  std::vector<GroupIndex> fragments = {group};
  const std::vector<SlabIndex> slabs = slabs_.SlabsOf(group);
  fragments.reserve(slabs.size());
  for (size_t i = 1; i < slabs.size(); ++i) {
    fragments.push_back(CopyGroup(group, GroupKind::kFragment));
    slabs_.MoveSlab(slabs[i], fragments.back());
  }
  if (leased) ledger_.leases.Replace(group, fragments);
  for (const GroupIndex fragment : fragments) {
    if (leased) CountLeases(fragment);
    BecomeFragment(fragment);
  }
}

void Rows::BecomeFragment(GroupIndex group) {
  Group& it = slabs_.group(group);
  it.kind = GroupKind::kFragment;
  const MonoTime end = ledger_.now + ledger_.limits().fragment_ttl;
  fragment_ends_[group] = end;
  fragment_queue_.emplace_back(end, group);
  ledger_.Changed(it.key);
  File(group);
}

void Rows::ExpireFragments() {
  for (size_t left = ledger_.limits().step_slabs;
       left > 0 && !fragment_queue_.empty() && fragment_queue_.front().first <= ledger_.now;
       --left) {
    const auto [end, group] = fragment_queue_.front();
    fragment_queue_.pop_front();
    const auto found = fragment_ends_.find(group);
    if (found == fragment_ends_.end() || found->second != end) continue;
    if (slabs_.group(group).leases > 0) {
      found->second = ledger_.now + ledger_.limits().fragment_ttl;
      fragment_queue_.emplace_back(found->second, group);
      continue;
    }
    ledger_.Count("fragments_expired");
    Doom(group, GoneCause::kEvicted);
  }
}

void Rows::DropFragmentEnd(GroupIndex group) {
  fragment_ends_.erase(group);
  while (!fragment_queue_.empty()) {
    const auto [end, first] = fragment_queue_.front();
    const auto found = fragment_ends_.find(first);
    if (found != fragment_ends_.end() && found->second == end) return;
    fragment_queue_.pop_front();
  }
}

MonoTime Rows::NextFragmentEnd() const {
  return fragment_queue_.empty() ? absl::InfiniteDuration() : fragment_queue_.front().first;
}

// ---- Ends ----

void Rows::Doom(GroupIndex group, GoneCause cause) {
  if (slabs_.group(group).kind == GroupKind::kRow) {
    CloseRow(group, cause);
    slabs_.group(group).was_row = true;
  }
  BecomeDoomed(group);
}

void Rows::BecomeDoomed(GroupIndex group) {
  Unfile(group);
  DropFragmentEnd(group);
  Group& it = slabs_.group(group);
  if (it.leases > 0) ledger_.leases.Replace(group, {});
  it.leases = 0;
  it.kind = GroupKind::kDoomed;
  ledger_.Changed(it.key);
  if (it.first_slab == kNone) {
    RemoveGroup(group);
    return;
  }
  for (const SlabIndex slab : slabs_.SlabsOf(group)) {
    ledger_.cut_points.erase(slab);
    slabs_.slab(slab).cut_points_known = false;
    slabs_.SetState(slab, SlabState::kDeleting);
    const Store& store = ledger_.StoreAt(slabs_.slab(slab).store);
    ledger_.RoomChanged(slabs_.slab(slab).store);
    // A store that is not there, or still says what it has, is told when its inventory is done.
    if (store.state != StoreState::kServing) continue;
    ledger_.Emit(ToStore{.stream = store.stream, .message = DeleteSlab{slabs_.NameOf(slab)}});
  }
}

void Rows::DoomSlab(SlabIndex slab) {
  const GroupIndex group = slabs_.slab(slab).group;
  if (slabs_.group(group).first_slab == slab && slabs_.slab(slab).next == kNone) {
    BecomeDoomed(group);
    return;
  }
  const GroupIndex doomed = CopyGroup(group, GroupKind::kDoomed);
  slabs_.MoveSlab(slab, doomed);
  BecomeDoomed(doomed);
}

void Rows::Forget(SlabIndex slab, GoneCause cause) {
  GroupIndex group = slabs_.slab(slab).group;
  if (slabs_.group(group).kind == GroupKind::kRow) {
    BreakRow(group, cause);
    group = slabs_.slab(slab).group;
  }
  Unfile(group);
  DropFragmentEnd(group);
  ledger_.cut_points.erase(slab);
  ledger_.RoomChanged(slabs_.slab(slab).store);
  slabs_.RemoveSlab(slab);
  if (slabs_.group(group).first_slab == kNone) RemoveGroup(group);
}

}  // namespace kvmesh::meta
