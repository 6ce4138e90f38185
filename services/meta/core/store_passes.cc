// What is done with every slab of a store, of which there may be a million: in steps, between which
// other commands run. A slab that comes while a pass is under way needs none of them: it was named,
// and its store knows what is to be done with it.
#include "services/meta/core/attachments.h"

namespace kvmesh::meta {
namespace {

// Slabs of other stores that cost about as much to pass over as one of this store.
constexpr size_t kOthersPerSlab = 16;

}  // namespace

void Attachments::GoOn() {
  for (size_t i = 0; i < ledger_.stores.size(); ++i) {
    if (ledger_.stores[i].pass != StorePass::kNone) StepPass(StoreSlot{static_cast<uint16_t>(i)});
  }
}

void Attachments::StartPass(StoreSlot slot, StorePass pass) {
  Store& store = ledger_.StoreAt(slot);
  if (store.pass == StorePass::kNone) ++passes_;
  store.pass = pass;
  store.pass_next = 0;
  StepPass(slot);
}

void Attachments::StopPass(Store& store) {
  if (store.pass == StorePass::kNone) return;
  store.pass = StorePass::kNone;
  --passes_;
}

void Attachments::StepPass(StoreSlot slot) {
  Store& store = ledger_.StoreAt(slot);
  size_t left = ledger_.limits().step_slabs * kOthersPerSlab;
  while (store.pass != StorePass::kNone && left > 0) {
    if (store.pass_next >= ledger_.slabs.slab_bound()) {
      EndPass(slot);
      continue;
    }
    const SlabIndex slab = store.pass_next++;
    const bool its = ledger_.slabs.has_slab(slab) && ledger_.slabs.slab(slab).store == slot;
    if (its) Pass(store, slab);
    left -= std::min(left, its ? kOthersPerSlab : 1);
  }
}

void Attachments::Pass(Store& store, SlabIndex slab) {
  const Slab& it = ledger_.slabs.slab(slab);
  switch (store.pass) {
    case StorePass::kNone:
      return;
    case StorePass::kDropUnnamed:
      if (it.state != SlabState::kLive || it.named_in == store.inventory) return;
      return Drop(slab, GoneCause::kSlabLost);
    case StorePass::kForget:
      return Drop(slab, GoneCause::kSlabLost);
    case StorePass::kSettle:
      if (it.state == SlabState::kDeleting) {
        ledger_.Emit(
            ToStore{.stream = store.stream, .message = DeleteSlab{ledger_.slabs.NameOf(slab)}});
        return;
      }
      [[fallthrough]];
    case StorePass::kReconsider:
      if (ledger_.slabs.group(it.group).kind == GroupKind::kFragment) {
        ledger_.Changed(ledger_.slabs.group(it.group).key);
      }
  }
}

void Attachments::EndPass(StoreSlot slot) {
  Store& store = ledger_.StoreAt(slot);
  const StorePass ended = store.pass;
  if (ended == StorePass::kDropUnnamed) {
    store.pass = StorePass::kSettle;
    store.pass_next = 0;
    return Serve(slot);
  }
  StopPass(store);
  if (ended != StorePass::kForget) return;
  store = Store();
  ledger_.Count("stores_forgotten");
}

void Attachments::Serve(StoreSlot slot) {
  ledger_.StoreAt(slot).state = StoreState::kServing;
  ledger_.stores_changed = true;
  ledger_.RoomChanged(slot);
  ledger_.Emit(StoreReadable{.slot = slot, .readable = true});
}

// Numbers come again after 4,095 inventories; by then no slab may have one of the last round.
uint16_t Attachments::NextInventory(StoreSlot slot) {
  const uint16_t last = ledger_.StoreAt(slot).inventory;
  if (last < kInventoryNumberMax) return last + 1;
  for (SlabIndex slab = 0; slab < ledger_.slabs.slab_bound(); ++slab) {
    if (ledger_.slabs.has_slab(slab) && ledger_.slabs.slab(slab).store == slot) {
      ledger_.slabs.slab(slab).named_in = 0;
    }
  }
  return 1;
}

}  // namespace kvmesh::meta
