// Every slab the arbiter knows, in groups of one key, and each store's bytes by the slabs' state.
// Knows no policy; what a group's kind means is for Rows to say.
//
// Sized for millions: 112 bytes a group, 40 a slab, some 10 of index a group. Not thread-safe.
// Invariants: a store's account is the sum over its slabs, a namespace's bytes the sum over its
// live and reserved ones; the slabs of a group ascend by first layer; a group is found under its
// key as long as it lives.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "services/meta/core/arena.h"
#include "services/meta/core/types.h"

namespace kvmesh::meta {

using GroupIndex = uint32_t;  // of a row, it is the RowId
using SlabIndex = uint32_t;

struct Slab {
  WriteId write_id;
  GroupIndex group = kNone;
  SlabIndex next = kNone;  // in its group
  uint32_t pages = 0;
  uint32_t payload_crc32c = 0;
  uint16_t layer_begin = 0;
  uint16_t layer_end = 0;
  StoreSlot store{0};
  SlabState state : 2 = SlabState::kReserved;
  // Of live slabs outside rows: whether the cut points are kept beside the table, or else whether
  // the store was asked for them.
  bool cut_points_known : 1 = false;
  bool cut_points_asked : 1 = false;
  uint16_t named_in : 12 = 0;  // the last of its store's inventories that named it

  uint64_t bytes() const { return pages * kPageBytes; }
  LayerRange layers() const { return {layer_begin, layer_end}; }
};
static_assert(sizeof(Slab) == 40);

enum class GroupKind : uint8_t {
  kWriting,   // of a reservation: reserved and live slabs, or none yet
  kRow,       // live slabs that cover all layers
  kFragment,  // one live slab
  kDoomed,    // slabs being deleted
};

struct Group {
  Sha256Digest key;
  Sha256Digest tokens_sha256;
  uint64_t block_hash = 0;
  int64_t last_used_ms = 0;
  NamespaceId key_namespace{0};
  uint32_t token_count = 0;  // 0: nothing has arrived
  uint32_t tail_hash = 0;
  uint32_t hit_count = 0;
  uint32_t leases = 0;
  SlabIndex first_slab = kNone;
  GroupIndex next_of_key = kNone;
  uint32_t text_bytes : 25 = 0;
  GroupKind kind : 2 = GroupKind::kWriting;
  bool ends_inside_character : 1 = false;
  bool filed : 1 = false;    // in the order of eviction
  bool was_row : 1 = false;  // of kDoomed
  bool use_to_report : 1 = false;
};
static_assert(sizeof(Group) == 112);
static_assert(slab::kTextBytesMax < 1 << 25);

// Inventories of one store are numbered 1 to this, then from 1 again.
inline constexpr uint16_t kInventoryNumberMax = (1 << 12) - 1;

struct StoreAccount {
  uint64_t live_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint64_t deleting_bytes = 0;
  uint64_t live_slabs = 0;

  uint64_t total() const { return live_bytes + reserved_bytes + deleting_bytes; }
};

class SlabTable {
 public:
  SlabTable();
  SlabTable(const SlabTable&) = delete;
  SlabTable& operator=(const SlabTable&) = delete;

  GroupIndex AddGroup(const Group& group);  // without slabs
  void RemoveGroup(GroupIndex group);       // without slabs
  Group& group(GroupIndex index) { return groups_[index]; }
  const Group& group(GroupIndex index) const { return groups_[index]; }
  bool has_group(GroupIndex index) const { return groups_.contains(index); }
  GroupIndex group_bound() const { return groups_.bound(); }

  // The first of the groups of a key; the others by next_of_key. kNone: there is none.
  GroupIndex FirstOfKey(const Sha256Digest& key) const;

  SlabIndex AddSlab(GroupIndex group, const Slab& slab);
  void RemoveSlab(SlabIndex slab);
  void MoveSlab(SlabIndex slab, GroupIndex to);
  void SetState(SlabIndex slab, SlabState state);
  void SetPages(SlabIndex slab, uint32_t pages);
  Slab& slab(SlabIndex index) { return slabs_[index]; }
  const Slab& slab(SlabIndex index) const { return slabs_[index]; }
  bool has_slab(SlabIndex index) const { return slabs_.contains(index); }
  SlabIndex slab_bound() const { return slabs_.bound(); }

  // Of this name in this store, or kNone.
  SlabIndex Find(const SlabName& name, StoreSlot store) const;
  std::vector<SlabIndex> SlabsOf(GroupIndex group) const;
  SlabName NameOf(SlabIndex slab) const;
  StoreAccount Account(StoreSlot store) const;
  // Live and reserved, in all stores.
  uint64_t BytesOf(NamespaceId key_namespace) const;

 private:
  // Groups filed by the key each has, so that the index holds four bytes of them.
  struct KeyHash {
    using is_transparent = void;
    const Arena<Group>* groups;
    size_t operator()(const Sha256Digest& key) const { return absl::Hash<Sha256Digest>()(key); }
    size_t operator()(GroupIndex group) const { return (*this)((*groups)[group].key); }
  };
  struct KeyEqual {
    using is_transparent = void;
    const Arena<Group>* groups;
    bool operator()(GroupIndex a, GroupIndex b) const { return (*this)(a, (*groups)[b].key); }
    bool operator()(GroupIndex a, const Sha256Digest& key) const { return (*groups)[a].key == key; }
    bool operator()(const Sha256Digest& key, GroupIndex b) const { return (*this)(b, key); }
  };

  void Link(SlabIndex slab, GroupIndex group);
  void Unlink(SlabIndex slab);
  void Count(const Slab& slab);
  void Uncount(const Slab& slab);
  StoreAccount& MutableAccount(StoreSlot store);
  uint64_t& MutableBytes(const Slab& slab);

  Arena<Group> groups_;
  Arena<Slab> slabs_;
  absl::flat_hash_set<GroupIndex, KeyHash, KeyEqual> by_key_;  // the first of each key
  std::vector<StoreAccount> accounts_;                         // by slot
  std::vector<uint64_t> namespace_bytes_;                      // by NamespaceId
};

}  // namespace kvmesh::meta
