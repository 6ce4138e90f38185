#include "services/meta/core/slab_table.h"

namespace kvmesh::meta {

SlabTable::SlabTable() : by_key_(0, KeyHash{&groups_}, KeyEqual{&groups_}) {}

GroupIndex SlabTable::AddGroup(const Group& group) {
  const GroupIndex first = FirstOfKey(group.key);
  const GroupIndex index = groups_.Add(group);
  Group& added = groups_[index];
  added.first_slab = kNone;
  added.next_of_key = kNone;
  if (first == kNone) {
    by_key_.insert(index);
  } else {
    added.next_of_key = groups_[first].next_of_key;
    groups_[first].next_of_key = index;
  }
  return index;
}

void SlabTable::RemoveGroup(GroupIndex group) {
  const GroupIndex next = groups_[group].next_of_key;
  const GroupIndex first = FirstOfKey(groups_[group].key);
  if (first == group) {
    by_key_.erase(group);
    if (next != kNone) by_key_.insert(next);
  } else {
    GroupIndex before = first;
    while (groups_[before].next_of_key != group) before = groups_[before].next_of_key;
    groups_[before].next_of_key = next;
  }
  groups_.Remove(group);
}

GroupIndex SlabTable::FirstOfKey(const Sha256Digest& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? kNone : *found;
}

SlabIndex SlabTable::AddSlab(GroupIndex group, const Slab& slab) {
  const SlabIndex index = slabs_.Add(slab);
  Link(index, group);
  Count(slabs_[index]);
  return index;
}

void SlabTable::RemoveSlab(SlabIndex slab) {
  Uncount(slabs_[slab]);
  Unlink(slab);
  slabs_.Remove(slab);
}

// The groups are of one key, and so of one namespace, unless a store says otherwise.
void SlabTable::MoveSlab(SlabIndex slab, GroupIndex to) {
  Uncount(slabs_[slab]);
  Unlink(slab);
  Link(slab, to);
  Count(slabs_[slab]);
}

void SlabTable::SetState(SlabIndex slab, SlabState state) {
  Uncount(slabs_[slab]);
  slabs_[slab].state = state;
  Count(slabs_[slab]);
}

void SlabTable::SetPages(SlabIndex slab, uint32_t pages) {
  Uncount(slabs_[slab]);
  slabs_[slab].pages = pages;
  Count(slabs_[slab]);
}

SlabIndex SlabTable::Find(const SlabName& name, StoreSlot store) const {
  for (GroupIndex group = FirstOfKey(name.key); group != kNone;
       group = groups_[group].next_of_key) {
    for (SlabIndex index = groups_[group].first_slab; index != kNone; index = slabs_[index].next) {
      const Slab& slab = slabs_[index];
      if (slab.write_id == name.write_id && slab.layers() == name.layers && slab.store == store) {
        return index;
      }
    }
  }
  return kNone;
}

std::vector<SlabIndex> SlabTable::SlabsOf(GroupIndex group) const {
  std::vector<SlabIndex> slabs;
  for (SlabIndex slab = groups_[group].first_slab; slab != kNone; slab = slabs_[slab].next) {
    slabs.push_back(slab);
  }
  return slabs;
}

SlabName SlabTable::NameOf(SlabIndex slab) const {
  const Slab& it = slabs_[slab];
  return {.key = groups_[it.group].key, .layers = it.layers(), .write_id = it.write_id};
}

StoreAccount SlabTable::Account(StoreSlot store) const {
  const auto slot = static_cast<size_t>(store);
  return slot < accounts_.size() ? accounts_[slot] : StoreAccount();
}

uint64_t SlabTable::BytesOf(NamespaceId key_namespace) const {
  const auto id = static_cast<size_t>(key_namespace);
  return id < namespace_bytes_.size() ? namespace_bytes_[id] : 0;
}

void SlabTable::Link(SlabIndex slab, GroupIndex group) {
  Slab& it = slabs_[slab];
  it.group = group;
  SlabIndex* place = &groups_[group].first_slab;
  while (*place != kNone && slabs_[*place].layer_begin <= it.layer_begin) {
    place = &slabs_[*place].next;
  }
  it.next = *place;
  *place = slab;
}

void SlabTable::Unlink(SlabIndex slab) {
  SlabIndex* place = &groups_[slabs_[slab].group].first_slab;
  while (*place != slab) place = &slabs_[*place].next;
  *place = slabs_[slab].next;
  slabs_[slab].next = kNone;
}

void SlabTable::Count(const Slab& slab) {
  StoreAccount& account = MutableAccount(slab.store);
  if (slab.state != SlabState::kDeleting) MutableBytes(slab) += slab.bytes();
  switch (slab.state) {
    case SlabState::kReserved:
      account.reserved_bytes += slab.bytes();
      break;
    case SlabState::kLive:
      account.live_bytes += slab.bytes();
      ++account.live_slabs;
      break;
    case SlabState::kDeleting:
      account.deleting_bytes += slab.bytes();
      break;
  }
}

void SlabTable::Uncount(const Slab& slab) {
  StoreAccount& account = MutableAccount(slab.store);
  if (slab.state != SlabState::kDeleting) MutableBytes(slab) -= slab.bytes();
  switch (slab.state) {
    case SlabState::kReserved:
      account.reserved_bytes -= slab.bytes();
      break;
    case SlabState::kLive:
      account.live_bytes -= slab.bytes();
      --account.live_slabs;
      break;
    case SlabState::kDeleting:
      account.deleting_bytes -= slab.bytes();
      break;
  }
}

StoreAccount& SlabTable::MutableAccount(StoreSlot store) {
  const auto slot = static_cast<size_t>(store);
  if (slot >= accounts_.size()) accounts_.resize(slot + 1);
  return accounts_[slot];
}

uint64_t& SlabTable::MutableBytes(const Slab& slab) {
  const auto id = static_cast<size_t>(groups_[slab.group].key_namespace);
  if (id >= namespace_bytes_.size()) namespace_bytes_.resize(id + 1);
  return namespace_bytes_[id];
}

}  // namespace kvmesh::meta
