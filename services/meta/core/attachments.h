// Stores as they come, say what they have, and go (docs/arbiter.md, "Store"). Not thread-safe.
// Invariants: one live stream per store id; what comes on any other stream counts for nothing; a
// store serves only after the last page of its inventory, and after what that did not name is gone.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/meta/core/reservations.h"

namespace kvmesh::meta {

class Attachments {
 public:
  Attachments(Ledger& ledger, Rows& rows, Reservations& reservations)
      : ledger_(ledger), rows_(rows), reservations_(reservations) {}

  void Apply(const StoreHello& hello);
  void Apply(const StoreInventory& page);
  void Apply(const SlabAnnounced& announced);
  void Apply(const SlabRemoved& removed);
  void Apply(const SlabVerified& verified);
  void Apply(const StoreHeartbeat& heartbeat);
  void Apply(const StorePong& pong);
  void Apply(const StoreGone& gone);

  // Has stores verify a slab that a reader found bad.
  void Verify(const SlabName& name);

  // Silent stores, rivals whose time has come, lost stores to forget.
  void Tick();
  MonoTime Next() const;

  // Goes on with the passes over slabs of stores, ArbiterLimits::step_slabs of them for each store.
  void GoOn();
  bool HasMore() const { return passes_ > 0; }

  std::vector<StoreSnapshot> List() const;

 private:
  // The store whose live stream this is, or none.
  std::optional<StoreSlot> Heard(StreamId stream);
  std::optional<StoreSlot> FindStore(const StoreUid& uid) const;
  std::optional<StoreSlot> FreeSlot();
  void Attach(StoreSlot slot, const StoreHello& hello);
  void RaiseIncarnation(const StoreHello& hello);
  void ChallengeBy(StoreSlot slot, const StoreHello& hello);
  void RefuseRival(StoreSlot slot);
  void Lose(StoreSlot slot);
  void Close(StoreSlot slot, const absl::Status& status);
  void Link(StoreSlot slot, const SlabFacts& facts);
  void Drop(SlabIndex slab, GoneCause cause);

  // store_passes.cc
  uint16_t NextInventory(StoreSlot slot);
  void StartPass(StoreSlot slot, StorePass pass);
  void StepPass(StoreSlot slot);
  void StopPass(Store& store);
  void Pass(Store& store, SlabIndex slab);
  // It starts the next one, or none.
  void EndPass(StoreSlot slot);
  void Serve(StoreSlot slot);

  Ledger& ledger_;
  Rows& rows_;
  Reservations& reservations_;
  absl::flat_hash_map<StreamId, StoreSlot> streams_;  // live ones
  size_t passes_ = 0;                                 // stores that have one under way
};

}  // namespace kvmesh::meta
