// The life of groups of slabs: writes, fragments, rows, and what is being deleted (docs/arbiter.md,
// "Row"). Keeps the order of eviction, the leases and the read index in step with it.
//
// Not thread-safe. What a change means for other parts is noted in the ledger (Changed,
// RoomChanged) and settled at the command's end.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "services/meta/core/ledger.h"

namespace kvmesh::meta {

class Rows {
 public:
  explicit Rows(Ledger& ledger) : ledger_(ledger), slabs_(ledger.slabs) {}

  // ---- Writes ----
  GroupIndex OpenWrite(const slab::KeyNamespace& key_namespace, const Sha256Digest& key);
  void AddReserved(GroupIndex write, LayerRange layers, const WriteId& write_id, StoreSlot store,
                   uint32_t pages);
  // Every slab is live: a row, or fragments where it may not be one.
  void CompleteWrite(GroupIndex write);
  void CompleteFragment(GroupIndex write);
  // What an expired write has: a live slab becomes a fragment; the reserved ones are deleted.
  void AdoptSlab(SlabIndex slab);
  void DoomReserved(GroupIndex write);

  // ---- Announcements (row_links.cc) ----
  enum class Linked {
    kSettled,
    kOfWrite,      // a reserved slab of `group` is live now
    kBreaksWrite,  // it is not what `group` has reserved: the write has failed
  };
  std::pair<Linked, GroupIndex> Link(StoreSlot store, const SlabFacts& facts);
  // The store has the slab no more. Not for slabs of a write: that fails first.
  void Forget(SlabIndex slab, GoneCause cause);

  // ---- Ends ----
  void Doom(GroupIndex group, GoneCause cause);
  void DoomSlab(SlabIndex slab);
  // Fragments whose time has come, up to ArbiterLimits::step_slabs. Leased ones stay for another.
  void ExpireFragments();
  MonoTime NextFragmentEnd() const;

  // ---- Use (row_use.cc) ----
  void AddLease(GroupIndex group, const LeaseId& lease);
  void EndLease(const LeaseId& lease);
  void Touch(GroupIndex group);
  // Sends stores what was used since the last time, up to ArbiterLimits::step_slabs rows; the
  // others are due at once.
  void ReportUse();
  MonoTime NextUseReport() const;

  // ---- Promotion (promotion.cc) ----
  // If the key has no row and fragments of one tokenisation cover all layers, they become one.
  void Promote(const Sha256Digest& key);
  // Says L of a namespace. False: it is known to be another.
  bool LearnModelLayers(const slab::KeyNamespace& key_namespace, uint32_t model_layers);

  // ---- Questions (row_use.cc) ----
  GroupIndex RowOfKey(const Sha256Digest& key) const;
  // All of its slabs are live and their stores serve.
  bool Readable(GroupIndex group) const;
  PlacedSlab Place(SlabIndex slab) const;
  RowSnapshot Snapshot(GroupIndex group) const;

  uint64_t rows() const { return rows_; }
  uint64_t fragments() const { return fragment_ends_.size(); }

 private:
  std::pair<Linked, GroupIndex> LinkUnknown(StoreSlot store, const SlabFacts& facts);
  std::pair<Linked, GroupIndex> LinkReserved(SlabIndex slab, const SlabFacts& facts);
  std::pair<Linked, GroupIndex> Reannounce(SlabIndex slab, const SlabFacts& facts);
  bool LayersFit(const SlabFacts& facts) const;
  void KeepCutPoints(SlabIndex slab, const std::vector<slab::CutPoint>& cut_points);

  NamespaceId AcquireNamespace(const slab::KeyNamespace& key_namespace);
  GroupIndex CopyGroup(GroupIndex of, GroupKind kind);
  void RemoveGroup(GroupIndex group);
  void OpenRow(GroupIndex group);
  void CloseRow(GroupIndex row, GoneCause cause);
  void BreakRow(GroupIndex row, GoneCause cause);
  void SplitToFragments(GroupIndex group);
  void BecomeFragment(GroupIndex group);
  void BecomeDoomed(GroupIndex group);
  void DropFragmentEnd(GroupIndex group);
  void CountLeases(GroupIndex group);

  void File(GroupIndex group);
  void Unfile(GroupIndex group);

  // promotion.cc
  std::vector<SlabIndex> Cover(absl::Span<const SlabIndex> candidates, uint32_t model_layers) const;
  bool AskCutPoints(absl::Span<const SlabIndex> cover);
  void JoinFragments(absl::Span<const SlabIndex> cover);
  std::vector<slab::CutPoint> TakeCommonCutPoints(GroupIndex group);

  Ledger& ledger_;
  SlabTable& slabs_;
  uint64_t rows_ = 0;
  absl::flat_hash_map<GroupIndex, MonoTime> fragment_ends_;
  std::deque<std::pair<MonoTime, GroupIndex>> fragment_queue_;  // ends ascend; some are outdated
  // To be reported, from the front; some are gone. Those that were used while a report is under way
  // are in the next.
  std::vector<GroupIndex> used_;
  std::deque<GroupIndex> reporting_;
  MonoTime report_at_ = absl::InfiniteDuration();
  MonoTime reported_at_ = -absl::InfiniteDuration();
};

inline int64_t Millis(MonoTime time) {
  return absl::ToInt64Milliseconds(time);
}

}  // namespace kvmesh::meta
