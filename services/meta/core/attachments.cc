#include "services/meta/core/attachments.h"

#include <algorithm>

#include "services/meta/core/errors.h"

namespace kvmesh::meta {
namespace {

absl::Status InUse(const Store& store, const StoreHello& hello) {
  return RefusalForNow(
      absl::AlreadyExistsError(absl::StrCat("store id ", hello.uid.ToHex(), " of ", hello.address,
                                            " is in use by the store at ", store.address)),
      "STORE_ID_IN_USE", absl::Seconds(1));
}

absl::Status Superseded() {
  return Refusal(absl::AbortedError("the store has attached anew"), "SUPERSEDED");
}

}  // namespace

// ---- Coming ----

void Attachments::Apply(const StoreHello& hello) {
  const std::optional<StoreSlot> known = FindStore(hello.uid);
  const std::optional<StoreSlot> slot = known.has_value() ? known : FreeSlot();
  if (!slot.has_value()) {
    ledger_.Emit(CloseStream{
        .stream = hello.stream,
        .status = TooMany("places of stores", ledger_.limits().stores_max, "TOO_MANY_STORES")});
    return;
  }
  const Store& store = ledger_.StoreAt(*slot);
  if (!store.in_use || store.state == StoreState::kLost) {
    Attach(*slot, hello);
  } else if (store.boot == hello.boot) {  // the same process: it lives, its older stream is dead
    if (store.rival.has_value()) RefuseRival(*slot);
    Close(*slot, Superseded());
    Attach(*slot, hello);
  } else {
    ChallengeBy(*slot, hello);
  }
}

void Attachments::ChallengeBy(StoreSlot slot, const StoreHello& hello) {
  Store& store = ledger_.StoreAt(slot);
  ledger_.Count("store_ids_contested");
  if (store.rival.has_value()) {
    ledger_.Emit(CloseStream{.stream = hello.stream, .status = InUse(store, hello)});
    return;
  }
  store.rival = hello;
  store.rival_wins_at = ledger_.now + ledger_.limits().store_ping_wait;
  ledger_.Emit(ToStore{.stream = store.stream, .message = Ping{}});
}

void Attachments::Attach(StoreSlot slot, const StoreHello& hello) {
  RaiseIncarnation(hello);
  Store& store = ledger_.StoreAt(slot);
  const bool news = !store.in_use || store.address != hello.address || store.tier != hello.tier;
  store.in_use = true;
  store.uid = hello.uid;
  store.boot = hello.boot;
  store.address = hello.address;
  store.node = hello.node;
  store.tier = hello.tier;
  store.state = StoreState::kInventory;
  store.stream = hello.stream;
  store.budget_bytes = hello.budget_bytes;
  store.quarantined_bytes = 0;
  store.last_heard = ledger_.now;
  StopPass(store);
  store.inventory = NextInventory(slot);
  streams_[hello.stream] = slot;
  if (news) {
    ledger_.Emit(
        StoreOpened{.slot = slot, .uid = store.uid, .address = store.address, .tier = store.tier});
  }
  ledger_.Emit(ToStore{.stream = store.stream, .message = Welcome{ledger_.incarnation}});
  ledger_.Count("stores_attached");
}

// Above any that a store has seen. What this process granted stays: only its number grows.
void Attachments::RaiseIncarnation(const StoreHello& hello) {
  if (!hello.seen.has_value() || hello.seen->id == ledger_.incarnation.id) return;
  if (hello.seen->number < ledger_.incarnation.number) return;
  ledger_.incarnation.number = hello.seen->number + 1;
  for (const Store& store : ledger_.stores) {
    if (store.state == StoreState::kLost) continue;
    ledger_.Emit(ToStore{.stream = store.stream, .message = Welcome{ledger_.incarnation}});
  }
}

// ---- Saying what it has ----

void Attachments::Apply(const StoreInventory& page) {
  const std::optional<StoreSlot> slot = Heard(page.stream);
  if (!slot.has_value()) return;
  const Store& store = ledger_.StoreAt(*slot);
  if (store.state != StoreState::kInventory || store.pass != StorePass::kNone) {
    Close(*slot, absl::InvalidArgumentError("an inventory page after the last one"));
    return;
  }
  for (const SlabFacts& facts : page.slabs) Link(*slot, facts);
  if (page.last) StartPass(*slot, StorePass::kDropUnnamed);
}

void Attachments::Apply(const SlabAnnounced& announced) {
  const std::optional<StoreSlot> slot = Heard(announced.stream);
  if (slot.has_value()) Link(*slot, announced.slab);
}

void Attachments::Link(StoreSlot slot, const SlabFacts& facts) {
  const auto [linked, write] = rows_.Link(slot, facts);
  switch (linked) {
    case Rows::Linked::kSettled:
      break;
    case Rows::Linked::kOfWrite:
      reservations_.OnLinked(write);
      break;
    case Rows::Linked::kBreaksWrite:
      reservations_.Fail(write);
      break;
  }
}

void Attachments::Apply(const SlabRemoved& removed) {
  const std::optional<StoreSlot> slot = Heard(removed.stream);
  if (!slot.has_value()) return;
  const SlabIndex slab = ledger_.slabs.Find(removed.name, *slot);
  // A reserved one may still come; only the answer to a delete, or its reservation, ends it.
  if (slab == kNone || ledger_.slabs.slab(slab).state == SlabState::kReserved) return;
  Drop(slab,
       removed.cause == RemovalCause::kQuarantined ? GoneCause::kSlabBad : GoneCause::kSlabLost);
}

void Attachments::Drop(SlabIndex slab, GoneCause cause) {
  const GroupIndex group = ledger_.slabs.slab(slab).group;
  if (ledger_.slabs.group(group).kind == GroupKind::kWriting &&
      !reservations_.OnVerified(slab, false)) {
    reservations_.Fail(group);
  }
  rows_.Forget(slab, cause);
}

void Attachments::Apply(const SlabVerified& verified) {
  const std::optional<StoreSlot> slot = Heard(verified.stream);
  if (!slot.has_value()) return;
  const SlabIndex slab = ledger_.slabs.Find(verified.name, *slot);
  if (slab == kNone || ledger_.slabs.slab(slab).state != SlabState::kLive) return;
  if (reservations_.OnVerified(slab, verified.sound) || verified.sound) return;
  Drop(slab, GoneCause::kSlabBad);
}

void Attachments::Verify(const SlabName& name) {
  for (size_t i = 0; i < ledger_.stores.size(); ++i) {
    const StoreSlot slot{static_cast<uint16_t>(i)};
    const SlabIndex slab = ledger_.slabs.Find(name, slot);
    if (slab == kNone || !ledger_.Serves(slot)) continue;
    if (ledger_.slabs.slab(slab).state != SlabState::kLive) continue;
    ledger_.Count("slabs_reported_bad");
    ledger_.Emit(ToStore{.stream = ledger_.StoreAt(slot).stream, .message = VerifySlab{name}});
  }
}

void Attachments::Apply(const StoreHeartbeat& heartbeat) {
  const std::optional<StoreSlot> slot = Heard(heartbeat.stream);
  if (!slot.has_value()) return;
  Store& store = ledger_.StoreAt(*slot);
  if (store.quarantined_bytes != heartbeat.quarantined_bytes) {
    store.quarantined_bytes = heartbeat.quarantined_bytes;
    ledger_.RoomChanged(*slot);
  }
  reservations_.KeepAlive(*slot, heartbeat.open_puts);
}

void Attachments::Apply(const StorePong& pong) {
  const std::optional<StoreSlot> slot = Heard(pong.stream);
  if (slot.has_value() && ledger_.StoreAt(*slot).rival.has_value()) RefuseRival(*slot);
}

// ---- Going ----

void Attachments::Apply(const StoreGone& gone) {
  if (const auto found = streams_.find(gone.stream); found != streams_.end()) {
    Lose(found->second);
    return;
  }
  for (Store& store : ledger_.stores) {
    if (store.rival.has_value() && store.rival->stream == gone.stream) store.rival.reset();
  }
}

void Attachments::Close(StoreSlot slot, const absl::Status& status) {
  ledger_.Emit(CloseStream{.stream = ledger_.StoreAt(slot).stream, .status = status});
  Lose(slot);
}

void Attachments::Lose(StoreSlot slot) {
  Store& store = ledger_.StoreAt(slot);
  streams_.erase(store.stream);
  StopPass(store);
  const bool served = store.state == StoreState::kServing;
  store.state = StoreState::kLost;
  store.lost_at = ledger_.now;
  if (served) {
    ledger_.Emit(StoreReadable{.slot = slot, .readable = false});
    ledger_.stores_changed = true;
    StartPass(slot, StorePass::kReconsider);
  }
  ledger_.RoomChanged(slot);
  ledger_.Count("stores_lost");
  if (!store.rival.has_value()) return;
  const StoreHello rival = *std::exchange(store.rival, std::nullopt);
  Attach(slot, rival);
}

void Attachments::RefuseRival(StoreSlot slot) {
  Store& store = ledger_.StoreAt(slot);
  const StoreHello rival = *std::exchange(store.rival, std::nullopt);
  ledger_.Emit(CloseStream{.stream = rival.stream, .status = InUse(store, rival)});
}

// ---- Time ----

void Attachments::Tick() {
  const ArbiterLimits& limits = ledger_.limits();
  for (size_t i = 0; i < ledger_.stores.size(); ++i) {
    const StoreSlot slot{static_cast<uint16_t>(i)};
    Store& store = ledger_.stores[i];
    if (!store.in_use) continue;
    if (store.state == StoreState::kLost) {
      if (store.pass == StorePass::kForget) continue;
      if (ledger_.now >= store.lost_at + limits.store_forget) StartPass(slot, StorePass::kForget);
    } else if (store.rival.has_value() && ledger_.now >= store.rival_wins_at) {
      Close(slot, Superseded());
    } else if (ledger_.now >= store.last_heard + limits.store_silence_max) {
      Close(slot, absl::UnavailableError("the store was silent for too long"));
    }
  }
}

MonoTime Attachments::Next() const {
  const ArbiterLimits& limits = ledger_.limits();
  MonoTime next = absl::InfiniteDuration();
  for (const Store& store : ledger_.stores) {
    if (!store.in_use) continue;
    if (store.state == StoreState::kLost) {
      if (store.pass == StorePass::kForget) continue;
      next = std::min(next, store.lost_at + limits.store_forget);
      continue;
    }
    next = std::min(next, store.last_heard + limits.store_silence_max);
    if (store.rival.has_value()) next = std::min(next, store.rival_wins_at);
  }
  return next;
}

// ---- Questions ----

std::optional<StoreSlot> Attachments::Heard(StreamId stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return std::nullopt;
  ledger_.StoreAt(found->second).last_heard = ledger_.now;
  return found->second;
}

std::optional<StoreSlot> Attachments::FindStore(const StoreUid& uid) const {
  for (size_t i = 0; i < ledger_.stores.size(); ++i) {
    if (ledger_.stores[i].in_use && ledger_.stores[i].uid == uid) {
      return StoreSlot{static_cast<uint16_t>(i)};
    }
  }
  return std::nullopt;
}

std::optional<StoreSlot> Attachments::FreeSlot() {
  for (size_t i = 0; i < ledger_.stores.size(); ++i) {
    if (!ledger_.stores[i].in_use) return StoreSlot{static_cast<uint16_t>(i)};
  }
  if (ledger_.stores.size() >= ledger_.limits().stores_max) return std::nullopt;
  ledger_.stores.emplace_back();
  return StoreSlot{static_cast<uint16_t>(ledger_.stores.size() - 1)};
}

std::vector<StoreSnapshot> Attachments::List() const {
  std::vector<StoreSnapshot> listed;
  for (size_t i = 0; i < ledger_.stores.size(); ++i) {
    const Store& store = ledger_.stores[i];
    if (!store.in_use) continue;
    const StoreSlot slot{static_cast<uint16_t>(i)};
    const StoreAccount account = ledger_.slabs.Account(slot);
    listed.push_back({.slot = slot,
                      .uid = store.uid,
                      .address = store.address,
                      .node = store.node,
                      .tier = store.tier,
                      .state = store.state,
                      .budget_bytes = store.budget_bytes,
                      .live_bytes = account.live_bytes,
                      .reserved_bytes = account.reserved_bytes,
                      .deleting_bytes = account.deleting_bytes,
                      .quarantined_bytes = store.quarantined_bytes,
                      .slabs = account.live_slabs});
  }
  return listed;
}

}  // namespace kvmesh::meta
