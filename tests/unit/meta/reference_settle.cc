// What follows in the reference model from time, and from each change.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/meta/arbiter_values.h"
#include "tests/unit/meta/reference_model.h"

namespace kvmesh::meta::testing {
// ---- Time ----

void ReferenceModel::Timers() {
  std::vector<LeaseId> lapsed;
  for (const auto& [id, lease] : leases_) {
    if (lease.ends <= now_) lapsed.push_back(id);
  }
  for (const LeaseId& id : lapsed) EndLease(id);
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    it = TryWaiter(it->first, it->second) ? waiters_.erase(it) : std::next(it);
  }
  std::vector<MReservation*> due;
  for (MReservation& it : reservations_) {
    if (it.ends <= now_) due.push_back(&it);
  }
  absl::c_sort(due, [](const MReservation* a, const MReservation* b) {
    return std::pair(a->ends, a->serial) < std::pair(b->ends, b->serial);
  });
  for (MReservation* it : due) {
    Thing* thing = it->thing;
    std::vector<SlabName> live;
    for (const MSlab& slab : thing->slabs) {
      if (slab.state == SlabState::kLive) live.push_back(slab.facts.name);
    }
    if (it->state == MReservation::kWaiting) {
      ExpectAnswer(*it->ticket, "RESOURCE_EXHAUSTED NO_ROOM");
    } else if (it->state == MReservation::kReserved && !live.empty()) {
      for (size_t i = 0; i < thing->slabs.size();) {
        if (thing->slabs[i].state == SlabState::kReserved) {
          DoomSlab(thing, i);
        } else {
          ++i;
        }
      }
      it->state = MReservation::kExpired;
      it->ends = now_ + limits_.verify_wait;
      for (const MSlab& slab : thing->slabs) {
        if (Serves(slab.store)) ToStoreOf(slab.store, "verify " + Describe(slab.facts.name));
      }
      continue;
    }
    EraseReservation(it);
    Doom(thing);
  }
  std::vector<Thing*> ended;
  for (Thing& thing : things_) {
    if (thing.kind != Kind::kFragment || thing.fragment_end > now_) continue;
    if (thing.leases.empty()) {
      ended.push_back(&thing);
    } else {
      thing.fragment_end = now_ + limits_.fragment_ttl;
    }
  }
  for (Thing* thing : ended) Doom(thing);
  std::map<uint64_t, StoreUid> by_slot;
  for (const auto& [uid, store] : stores_) by_slot[store.slot] = uid;
  for (const auto& [slot, uid] : by_slot) {
    MStore& store = stores_.at(uid);
    if (store.state == StoreState::kLost) {
      if (now_ < store.lost_at + limits_.store_forget) continue;
      for (bool again = true; again;) {
        again = false;
        for (Thing& thing : things_) {
          const auto slab = absl::c_find_if(
              thing.slabs, [&uid = uid](const MSlab& it) { return it.store == uid; });
          if (slab == thing.slabs.end()) continue;
          Drop(&thing, static_cast<size_t>(slab - thing.slabs.begin()));
          again = true;
          break;
        }
      }
      stores_.erase(uid);
    } else if (store.rival.has_value() && now_ >= store.rival_wins_at) {
      Close(&store, "ABORTED SUPERSEDED");
    } else if (now_ >= store.heard + limits_.store_silence_max) {
      Close(&store, "UNAVAILABLE");
    }
  }
  Settle();
}

// ---- What follows ----

void ReferenceModel::Settle() {
  for (bool again = true; again;) {
    again = false;
    while (PromoteOne()) {
    }
    while (EvictOne()) again = true;
    if (again) continue;
    again = GrantOne();
  }
  SettleWaiters();
}

bool ReferenceModel::PromoteOne() {
  std::map<std::tuple<Sha256Digest, Sha256Digest, uint32_t>, std::vector<std::pair<Thing*, MSlab*>>>
      texts;
  for (Thing& thing : things_) {
    if (thing.kind != Kind::kFragment || thing.text.ends_inside_character) continue;
    if (RowOf(thing.key) != nullptr) continue;
    texts[{thing.key, thing.text.tokens_sha256, thing.text.token_count}].emplace_back(
        &thing, &thing.slabs.front());
  }
  std::set<Sha256Digest> done;
  for (auto& [text, all] : texts) {
    const std::optional<uint32_t> layers = ModelLayers(all.front().first->name_space);
    if (!layers.has_value()) continue;
    for (const bool serving_only : {true, false}) {
      std::vector<std::pair<Thing*, MSlab*>> cover;
      uint32_t at = 0;
      while (at < *layers) {
        std::pair<Thing*, MSlab*> best{nullptr, nullptr};
        for (const auto& [thing, slab] : all) {
          const LayerRange range = slab->facts.name.layers;
          if (range.begin > at || range.end <= at || range.end > *layers) continue;
          if (serving_only && !Serves(slab->store)) continue;
          const auto rank = [this](const MSlab& it) {
            return std::tuple(-static_cast<int>(it.facts.name.layers.end), it.facts.name.write_id,
                              stores_.at(it.store).slot);
          };
          if (best.second == nullptr || rank(*slab) < rank(*best.second)) best = {thing, slab};
        }
        if (best.second == nullptr) break;
        cover.push_back(best);
        at = best.second->facts.name.layers.end;
      }
      if (at < *layers) continue;
      bool missing = false;
      for (const auto& [thing, slab] : cover) {
        if (slab->cuts_known) continue;
        missing = true;
        if (slab->cuts_asked || !Serves(slab->store)) continue;
        slab->cuts_asked = true;
        ToStoreOf(slab->store, "describe " + Describe(slab->facts.name));
      }
      if (missing) break;
      Thing* row = NewThing(Kind::kRow, cover.front().first->key, cover.front().first->name_space);
      row->text = cover.front().first->text;
      row->last_used_ms = INT64_MIN;
      for (const auto& [thing, slab] : cover) {
        row->last_used_ms = std::max(row->last_used_ms, thing->last_used_ms);
        row->hits = std::max(row->hits, thing->hits);
        row->leases.insert(thing->leases.begin(), thing->leases.end());
        row->slabs.push_back(*slab);
      }
      for (const auto& [thing, slab] : cover) {
        thing->slabs.clear();
        Remove(thing);
      }
      OpenRow(row);
      return true;
    }
  }
  return false;
}

// One pass over all stores.
bool ReferenceModel::EvictOne() {
  std::map<uint64_t, StoreUid> by_slot;
  for (const auto& [uid, store] : stores_) by_slot[store.slot] = uid;
  bool evicted = false;
  for (const auto& [slot, uid] : by_slot) {
    const MStore& store = stores_.at(uid);
    if (store.state != StoreState::kServing) continue;
    const auto share = [&store](double of) {
      return static_cast<uint64_t>(static_cast<double>(store.hello.budget_bytes) * of);
    };
    const uint64_t high = share(limits_.high_watermark);
    const uint64_t low = share(limits_.low_watermark);
    const auto staying = [this, &uid = uid, &store] {
      return Live(uid) + Reserved(uid) + Waiting(uid) + store.quarantined;
    };
    if (staying() <= high) continue;
    const uint64_t fixed = Fixed(uid);
    const uint64_t target = fixed <= low ? low : fixed <= high ? high : store.hello.budget_bytes;
    while (staying() > target) {
      std::vector<Thing*> oldest;
      for (Thing& thing : things_) {
        if (thing.kind != Kind::kRow && thing.kind != Kind::kFragment) continue;
        if (!thing.leases.empty()) continue;
        if (absl::c_none_of(thing.slabs, [&uid = uid](const MSlab& s) { return s.store == uid; })) {
          continue;
        }
        const auto age = [](const Thing& it) {
          return std::pair(it.kind == Kind::kRow, it.last_used_ms);
        };
        if (!oldest.empty() && age(thing) > age(*oldest.front())) continue;
        if (!oldest.empty() && age(thing) < age(*oldest.front())) oldest.clear();
        oldest.push_back(&thing);
      }
      if (oldest.empty()) break;
      const std::vector<std::string> actual = Spell(*effects_);
      Thing* victim = oldest.front();
      for (Thing* thing : oldest) {
        for (const MSlab& slab : thing->slabs) {
          const std::string line = absl::StrCat("to ", static_cast<uint64_t>(store.hello.stream),
                                                " delete ", Describe(slab.facts.name));
          if (slab.store == uid && absl::c_linear_search(actual, line)) victim = thing;
        }
      }
      Doom(victim);
      evicted = true;
    }
  }
  return evicted;
}

// One pass over those that wait.
bool ReferenceModel::GrantOne() {
  bool any = false;
  std::set<StoreUid> blocked;
  for (auto it = reservations_.begin(); it != reservations_.end();) {
    MReservation& one = *it++;
    if (one.state != MReservation::kWaiting) continue;
    const auto refuse = [&](absl::string_view status) {
      ExpectAnswer(*one.ticket, std::string(status));
      Thing* thing = one.thing;
      EraseReservation(&one);
      Doom(thing);
      any = true;
    };
    if (absl::c_any_of(one.stores, [this](const StoreUid& uid) { return !Serves(uid); })) {
      refuse("UNAVAILABLE NO_STORE");
      continue;
    }
    std::map<StoreUid, uint64_t> wants;
    bool fits = true;
    for (size_t i = 0; i < one.stores.size(); ++i) {
      const uint64_t pages = (one.request.ranges[i].size_bytes + kPageBytes - 1) / kPageBytes;
      wants[one.stores[i]] += pages * kPageBytes;
      fits = fits && !blocked.contains(one.stores[i]);
    }
    for (const auto& [uid, bytes] : wants) {
      const uint64_t taken =
          Live(uid) + Reserved(uid) + Deleting(uid) + stores_.at(uid).quarantined;
      fits = fits && taken + bytes <= stores_.at(uid).hello.budget_bytes;
    }
    if (!fits) {
      blocked.insert(one.stores.begin(), one.stores.end());
      continue;
    }
    if (HasSlabs(one.request)) {
      refuse("INVALID_ARGUMENT");
      continue;
    }
    for (size_t i = 0; i < one.stores.size(); ++i) {
      const RangeBytes& range = one.request.ranges[i];
      MSlab slab{.store = one.stores[i],
                 .bytes = (range.size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes};
      slab.facts.name = {
          .key = one.request.key, .layers = range.layers, .write_id = one.request.write_id};
      one.thing->slabs.push_back(slab);
    }
    for (const auto& [uid, bytes] : wants) {
      const uint64_t taken =
          Live(uid) + Reserved(uid) + Deleting(uid) + stores_.at(uid).quarantined;
      if (taken <= stores_.at(uid).hello.budget_bytes) continue;
      broken_budgets_.push_back(absl::StrCat("store ", NumberOf(uid), " holds ", taken));
    }
    one.state = MReservation::kReserved;
    one.ends = now_ + limits_.reservation_ttl;
    ExpectAnswer(*one.ticket, SpellGrant(one));
    one.ticket.reset();
    any = true;
  }
  return any;
}

void ReferenceModel::SettleWaiters() {
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    it = TryWaiter(it->first, it->second) ? waiters_.erase(it) : std::next(it);
  }
}

}  // namespace kvmesh::meta::testing
