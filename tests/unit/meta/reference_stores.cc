// How the reference model treats stores.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/meta/arbiter_values.h"
#include "tests/unit/meta/reference_model.h"

namespace kvmesh::meta::testing {

void ReferenceModel::Do(const StoreHello& hello) {
  const auto found = stores_.find(hello.uid);
  if (found == stores_.end()) {
    if (stores_.size() >= limits_.stores_max) {
      Expect(absl::StrCat("close ", static_cast<uint64_t>(hello.stream),
                          " RESOURCE_EXHAUSTED TOO_MANY_STORES"));
      return;
    }
    std::set<uint64_t> slots;
    for (const auto& [uid, store] : stores_) slots.insert(store.slot);
    MStore& store = stores_[hello.uid];
    while (slots.contains(store.slot)) ++store.slot;
    Attach(&store, hello);
    return;
  }
  MStore& store = found->second;
  if (store.state == StoreState::kLost) {
    Attach(&store, hello);
  } else if (store.hello.boot == hello.boot) {
    if (store.rival.has_value()) {
      Expect(absl::StrCat("close ", static_cast<uint64_t>(store.rival->stream),
                          " ALREADY_EXISTS STORE_ID_IN_USE"));
      store.rival.reset();
    }
    Close(&store, "ABORTED SUPERSEDED");
    Attach(&store, hello);
  } else if (store.rival.has_value()) {
    Expect(absl::StrCat("close ", static_cast<uint64_t>(hello.stream),
                        " ALREADY_EXISTS STORE_ID_IN_USE"));
  } else {
    store.rival = hello;
    store.rival_wins_at = now_ + limits_.store_ping_wait;
    ToStoreOf(hello.uid, "ping");
  }
}

void ReferenceModel::Attach(MStore* store, const StoreHello& hello) {
  const auto& seen = hello.seen;
  if (seen.has_value() && seen->id != incarnation_.id && seen->number >= incarnation_.number) {
    incarnation_.number = seen->number + 1;
    for (const auto& [uid, other] : stores_) {
      const bool attached = &other != store && other.state != StoreState::kLost;
      if (attached) ToStoreOf(uid, absl::StrCat("welcome ", incarnation_.number));
    }
  }
  store->hello = hello;
  store->state = StoreState::kInventory;
  store->quarantined = 0;
  store->heard = now_;
  ToStoreOf(hello.uid, absl::StrCat("welcome ", incarnation_.number));
  for (Thing& thing : things_) {
    for (MSlab& slab : thing.slabs) {
      if (slab.store != hello.uid) continue;
      slab.confirmed = false;
      slab.cuts_asked = false;
    }
  }
}

ReferenceModel::MStore* ReferenceModel::Heard(StreamId stream) {
  for (auto& [uid, store] : stores_) {
    if (store.state == StoreState::kLost || store.hello.stream != stream) continue;
    store.heard = now_;
    return &store;
  }
  return nullptr;
}

void ReferenceModel::Do(const StoreInventory& page) {
  MStore* store = Heard(page.stream);
  if (store == nullptr) return;
  if (store->state != StoreState::kInventory) {
    Close(store, "INVALID_ARGUMENT");
    return;
  }
  const StoreUid uid = store->hello.uid;
  for (const SlabFacts& facts : page.slabs) Link(uid, facts);
  if (!page.last) return;
  for (bool again = true; again;) {
    again = false;
    for (Thing& thing : things_) {
      for (size_t i = 0; i < thing.slabs.size() && !again; ++i) {
        const MSlab& slab = thing.slabs[i];
        if (slab.store != uid || slab.confirmed || slab.state != SlabState::kLive) continue;
        Drop(&thing, i);
        again = true;
      }
      if (again) break;
    }
  }
  store->state = StoreState::kServing;
  look_at_all_ = true;
  for (const Thing& thing : things_) {
    for (const MSlab& slab : thing.slabs) {
      if (slab.store != uid || slab.state != SlabState::kDeleting) continue;
      ToStoreOf(uid, "delete " + Describe(slab.facts.name));
    }
  }
}

void ReferenceModel::Do(const SlabAnnounced& announced) {
  if (const MStore* store = Heard(announced.stream); store != nullptr) {
    Link(store->hello.uid, announced.slab);
  }
}

void ReferenceModel::Do(const SlabRemoved& removed) {
  const MStore* store = Heard(removed.stream);
  if (store == nullptr) return;
  const auto [thing, slab] = Find(removed.name, store->hello.uid);
  if (thing == nullptr || thing->slabs[slab].state == SlabState::kReserved) return;
  Drop(thing, slab);
}

void ReferenceModel::Do(const SlabVerified& verified) {
  const MStore* store = Heard(verified.stream);
  if (store == nullptr) return;
  const auto [thing, slab] = Find(verified.name, store->hello.uid);
  if (thing == nullptr || thing->slabs[slab].state != SlabState::kLive) return;
  if (OnVerified(thing, slab, verified.sound) || verified.sound) return;
  Drop(thing, slab);
}

void ReferenceModel::Do(const StoreHeartbeat& heartbeat) {
  MStore* store = Heard(heartbeat.stream);
  if (store == nullptr) return;
  store->quarantined = heartbeat.quarantined_bytes;
  for (MReservation& it : reservations_) {
    const bool named = absl::c_linear_search(heartbeat.open_puts, it.request.write_id);
    const bool its_store = absl::c_linear_search(it.stores, store->hello.uid);
    if (named && its_store && it.state == MReservation::kReserved) {
      it.ends = now_ + limits_.reservation_ttl;
    }
  }
}

void ReferenceModel::Do(const StorePong& pong) {
  MStore* store = Heard(pong.stream);
  if (store == nullptr || !store->rival.has_value()) return;
  Expect(absl::StrCat("close ", static_cast<uint64_t>(store->rival->stream),
                      " ALREADY_EXISTS STORE_ID_IN_USE"));
  store->rival.reset();
}

void ReferenceModel::Do(const StoreGone& gone) {
  for (auto& [uid, store] : stores_) {
    if (store.state != StoreState::kLost && store.hello.stream == gone.stream) {
      Lose(&store);
      return;
    }
    if (store.rival.has_value() && store.rival->stream == gone.stream) {
      store.rival.reset();
      return;
    }
  }
}

void ReferenceModel::Close(MStore* store, const std::string& reason) {
  Expect(absl::StrCat("close ", static_cast<uint64_t>(store->hello.stream), " ", reason));
  Lose(store);
}

void ReferenceModel::Lose(MStore* store) {
  look_at_all_ = true;
  store->state = StoreState::kLost;
  store->lost_at = now_;
  if (!store->rival.has_value()) return;
  const StoreHello rival = *store->rival;
  store->rival.reset();
  Attach(store, rival);
}

}  // namespace kvmesh::meta::testing
