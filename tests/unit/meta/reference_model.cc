#include "tests/unit/meta/reference_model.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/meta/arbiter_values.h"

namespace kvmesh::meta::testing {
namespace {

uint64_t PagesUp(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

std::vector<std::string> ReferenceModel::Apply(const Command& command, MonoTime now,
                                               const std::vector<Effect>& effects) {
  now_ = now;
  effects_ = &effects;
  expected_.clear();
  broken_budgets_.clear();
  Timers();
  std::visit([this](const auto& it) { Do(it); }, command);
  Settle();
  Timers();
  absl::c_sort(expected_);
  return expected_;
}

// ---- Readers ----

void ReferenceModel::Do(const Checkout& command) {
  std::vector<const Thing*> pinned;
  for (const Thing& thing : things_) {
    if (thing.leases.contains(command.lease)) pinned.push_back(&thing);
  }
  if (command.or_held && pinned.size() == 1 && pinned[0]->kind == Kind::kRow &&
      Readable(*pinned[0])) {
    leases_[command.lease].ends = now_ + limits_.lease_ttl;
    ExpectAnswer(command.ticket, absl::StrCat("lease ", NumberOf(command.lease), " of k",
                                              NumberOf(pinned[0]->key)));
    return;
  }
  Thing* row = RowOf(command.key);
  if (row == nullptr || row->slabs.front().facts.name.write_id != command.write_id ||
      !Readable(*row)) {
    ExpectAnswer(command.ticket, "NOT_FOUND");
    return;
  }
  if (leases_.contains(command.lease)) {
    std::set<const Thing*> held;
    for (const Thing& thing : things_) {
      if (thing.leases.contains(command.lease)) held.insert(&thing);
    }
    if (held != std::set<const Thing*>{row}) {
      ExpectAnswer(command.ticket, "ALREADY_EXISTS LEASE_ID_IN_USE");
      return;
    }
  } else if (leases_.size() >= limits_.leases_max) {
    ExpectAnswer(command.ticket, "RESOURCE_EXHAUSTED TOO_MANY_LEASES");
    return;
  } else {
    row->leases.insert(command.lease);
    Touch(row);
  }
  leases_[command.lease].ends = now_ + limits_.lease_ttl;
  ExpectAnswer(command.ticket,
               absl::StrCat("lease ", NumberOf(command.lease), " of k", NumberOf(command.key)));
}

void ReferenceModel::Do(const Renew& command) {
  std::string unknown;
  for (const LeaseId& lease : command.leases) {
    const bool holds = absl::c_any_of(
        things_, [&lease](const Thing& thing) { return thing.leases.contains(lease); });
    if (holds) {
      leases_[lease].ends = now_ + limits_.lease_ttl;
    } else {
      absl::StrAppend(&unknown, " l", NumberOf(lease));
    }
  }
  for (const WriteId& write : command.writes) {
    const auto found = absl::c_find_if(reservations_, [&write](const MReservation& it) {
      return it.request.write_id == write && it.state == MReservation::kReserved;
    });
    if (found == reservations_.end()) {
      absl::StrAppend(&unknown, " w", NumberOf(write));
    } else {
      found->ends = now_ + limits_.reservation_ttl;
    }
  }
  ExpectAnswer(command.ticket, "renewed, unknown:" + unknown);
}

void ReferenceModel::Do(const Checkin& command) {
  const bool known = leases_.contains(command.lease);
  EndLease(command.lease);
  for (const SlabName& name : command.bad_slabs) {
    for (const auto& [uid, store] : stores_) {
      const auto [thing, slab] = Find(name, uid);
      if (thing == nullptr || !Serves(uid)) continue;
      if (thing->slabs[slab].state != SlabState::kLive) continue;
      ToStoreOf(uid, "verify " + Describe(name));
    }
  }
  ExpectAnswer(command.ticket, absl::StrCat("ended ", known));
}

void ReferenceModel::Do(const RowHit& command) {
  // The test gives ids of rows that are there, or none at all.
  if (Thing* row = RowOf(command.key); row != nullptr) Touch(row);
}

void ReferenceModel::Do(const AwaitKey& command) {
  const Waiter waiter{
      .for_key = true,
      .wants = {.key_namespace = command.key_namespace, .positions = {{.key = command.key}}},
      .upload_until = now_ + command.wait};
  if (TryWaiter(command.ticket, waiter)) return;
  if (waiters_.size() >= limits_.waiters_max) {
    ExpectAnswer(command.ticket, "RESOURCE_EXHAUSTED TOO_MANY_WAITERS");
    return;
  }
  waiters_[command.ticket] = waiter;
}

void ReferenceModel::Do(const AwaitFragment& command) {
  const Waiter waiter{.wants = command,
                      .appear_until = now_ + command.appear_wait,
                      .upload_until = now_ + command.upload_wait};
  if (TryWaiter(command.ticket, waiter)) return;
  if (waiters_.size() >= limits_.waiters_max) {
    ExpectAnswer(command.ticket, "RESOURCE_EXHAUSTED TOO_MANY_WAITERS");
    return;
  }
  waiters_[command.ticket] = waiter;
}

bool ReferenceModel::TryWaiter(Ticket ticket, const Waiter& waiter) {
  const auto is_live = [](const MReservation& it) { return it.state != MReservation::kExpired; };
  if (waiter.for_key) {
    const Sha256Digest& key = waiter.wants.positions.front().key;
    if (const Thing* row = RowOf(key); row != nullptr && Readable(*row)) {
      ExpectAnswer(ticket, row->name_space == waiter.wants.key_namespace
                               ? absl::StrCat("row k", NumberOf(key))
                               : "NOT_FOUND");
      return true;
    }
    const bool live = absl::c_any_of(reservations_, [&](const MReservation& it) {
      return is_live(it) && it.request.kind == ReservationKind::kRow && it.request.key == key;
    });
    if (live && now_ < waiter.upload_until) return false;
    ExpectAnswer(ticket, live ? "DEADLINE_EXCEEDED" : "NOT_FOUND");
    return true;
  }
  for (size_t i = 0; i < waiter.wants.positions.size(); ++i) {
    const FragmentPosition& at = waiter.wants.positions[i];
    Thing* found = nullptr;
    std::string line;
    for (Thing& thing : things_) {
      if (thing.kind != Kind::kRow && thing.kind != Kind::kFragment) continue;
      if (thing.key != at.key || thing.text.tokens_sha256 != at.tokens_sha256) continue;
      if (thing.text.token_count != at.token_count) continue;
      if (thing.name_space != waiter.wants.key_namespace) continue;
      for (const MSlab& slab : thing.slabs) {
        if (slab.facts.name.layers != waiter.wants.layers || !Serves(slab.store)) continue;
        const std::string candidate =
            absl::StrCat("fragment ", i, " ", Describe(slab.facts.name), "@", NumberOf(slab.store));
        const std::vector<std::string> actual = Spell(*effects_);
        const bool taken = absl::c_linear_search(
            actual, absl::StrCat("answer ", static_cast<uint64_t>(ticket), " ", candidate));
        if (found != nullptr && !taken) continue;
        found = &thing;
        line = candidate;
      }
    }
    if (found == nullptr) continue;
    if (leases_.contains(waiter.wants.lease)) {
      const bool holds_it = found->leases.contains(waiter.wants.lease) &&
                            absl::c_count_if(things_, [&](const Thing& thing) {
                              return thing.leases.contains(waiter.wants.lease);
                            }) == 1;
      if (!holds_it) line = "ALREADY_EXISTS LEASE_ID_IN_USE";
      if (holds_it) leases_[waiter.wants.lease].ends = now_ + limits_.lease_ttl;
    } else if (leases_.size() >= limits_.leases_max) {
      line = "RESOURCE_EXHAUSTED TOO_MANY_LEASES";
    } else {
      leases_[waiter.wants.lease].ends = now_ + limits_.lease_ttl;
      found->leases.insert(waiter.wants.lease);
      Touch(found);
    }
    ExpectAnswer(ticket, line);
    return true;
  }
  const bool uploading = absl::c_any_of(reservations_, [&](const MReservation& it) {
    if (!is_live(it)) return false;
    const bool of_a_position =
        absl::c_any_of(waiter.wants.positions,
                       [&it](const FragmentPosition& at) { return at.key == it.request.key; });
    return of_a_position && absl::c_any_of(it.request.ranges, [&waiter](const RangeBytes& range) {
             return range.layers == waiter.wants.layers;
           });
  });
  if (uploading && now_ < waiter.upload_until) return false;
  if (!uploading && now_ < waiter.appear_until) return false;
  ExpectAnswer(ticket, uploading ? "DEADLINE_EXCEEDED" : "NOT_FOUND");
  return true;
}

void ReferenceModel::Do(const Abandon& command) {
  for (MReservation& it : reservations_) {
    if (it.ticket != command.ticket) continue;
    it.ticket.reset();
    Cancel(&it);
    break;
  }
  waiters_.erase(command.ticket);
}

// ---- Writers ----

std::string ReferenceModel::CheckReserve(const Reserve& command) {
  uint32_t at = 0;
  for (const RangeBytes& range : command.ranges) {
    if (range.layers.begin >= range.layers.end) return "INVALID_ARGUMENT";
    if (range.layers.end > command.model_layers || range.size_bytes == 0) return "INVALID_ARGUMENT";
    if (command.kind == ReservationKind::kRow && range.layers.begin != at) {
      return "INVALID_ARGUMENT";
    }
    at = range.layers.end;
  }
  if (command.kind == ReservationKind::kRow && at != command.model_layers) {
    return "INVALID_ARGUMENT";
  }
  if (command.kind == ReservationKind::kFragment && command.ranges.size() != 1) {
    return "INVALID_ARGUMENT";
  }
  const std::optional<uint32_t> known = ModelLayers(command.key_namespace);
  if (known.has_value() && *known != command.model_layers) return "INVALID_ARGUMENT";
  return "";
}

void ReferenceModel::Do(const Reserve& command) {
  if (const std::string wrong = CheckReserve(command); !wrong.empty()) {
    ExpectAnswer(command.ticket, wrong);
    return;
  }
  for (MReservation& it : reservations_) {
    if (it.request.request != command.request || it.state == MReservation::kExpired) continue;
    if (it.request.key != command.key) {
      ExpectAnswer(command.ticket, "INVALID_ARGUMENT");
    } else if (it.state == MReservation::kReserved) {
      it.ends = now_ + limits_.reservation_ttl;
      ExpectAnswer(command.ticket, SpellGrant(it));
    } else {
      ExpectAnswer(*it.ticket, "ABORTED SUPERSEDED");
      it.ticket = command.ticket;
    }
    return;
  }
  const auto cancelled = cancelled_.find(command.write_id);
  if (HasSlabs(command) ||
      (cancelled != cancelled_.end() && now_ < cancelled->second + limits_.cancelled_memory) ||
      absl::c_any_of(reservations_, [&command](const MReservation& it) {
        return it.request.write_id == command.write_id;
      })) {
    ExpectAnswer(command.ticket, "INVALID_ARGUMENT");
    return;
  }
  if (command.kind == ReservationKind::kRow) {
    if (const Thing* row = RowOf(command.key); row != nullptr && Readable(*row)) {
      ExpectAnswer(command.ticket, "ALREADY_EXISTS");
      return;
    }
    bool being_written = false;
    bool deleting = false;
    for (const MReservation& it : reservations_) {
      being_written |= it.request.key == command.key && it.state != MReservation::kExpired &&
                       it.request.kind == ReservationKind::kRow;
    }
    for (const Thing& thing : things_) {
      if (thing.key != command.key || thing.kind != Kind::kDoomed || !thing.was_row) continue;
      for (const MSlab& slab : thing.slabs) {
        deleting |=
            stores_.contains(slab.store) && stores_.at(slab.store).state != StoreState::kLost;
      }
    }
    if (being_written || deleting) {
      // With both, either is said.
      const std::string busy =
          absl::StrCat("answer ", static_cast<uint64_t>(command.ticket), " ABORTED BEING_WRITTEN");
      const bool says_busy = absl::c_linear_search(Spell(*effects_), busy);
      ExpectAnswer(command.ticket, being_written && (says_busy || !deleting)
                                       ? "ABORTED BEING_WRITTEN"
                                       : "ABORTED DELETING");
      return;
    }
  }
  if (reservations_.size() >= limits_.reservations_max) {
    ExpectAnswer(command.ticket, "RESOURCE_EXHAUSTED TOO_MANY_RESERVATIONS");
    return;
  }
  const uint64_t quota = LearnQuota(command);
  if (IsOverQuota(command, quota)) return;
  const std::vector<Tier> tiers =
      command.tier.has_value() ? std::vector<Tier>{*command.tier} : tiers_.Of(command.reason);
  std::vector<StoreUid> chosen = Choose(tiers, command, false);
  if (chosen.empty()) {
    const bool any = absl::c_any_of(stores_, [&](const auto& entry) {
      return entry.second.state == StoreState::kServing &&
             absl::c_linear_search(tiers, entry.second.hello.tier);
    });
    const bool when_empty = !Choose(tiers, command, true).empty();
    ExpectAnswer(command.ticket, !any         ? "UNAVAILABLE NO_STORE"
                                 : when_empty ? "RESOURCE_EXHAUSTED NO_ROOM"
                                              : "RESOURCE_EXHAUSTED TOO_LARGE");
    return;
  }
  Thing* thing = NewThing(Kind::kWriting, command.key, command.key_namespace);
  Learn(command.key_namespace, command.model_layers);
  reservations_.push_back({.request = command,
                           .thing = thing,
                           .stores = std::move(chosen),
                           .ticket = command.ticket,
                           .ends = now_ + command.room_wait,
                           .serial = ++serial_});
  TrimAbove(command.key_namespace, quota);
}

std::vector<StoreUid> ReferenceModel::Choose(const std::vector<Tier>& tiers, const Reserve& command,
                                             bool when_empty) const {
  for (const Tier tier : tiers) {
    std::map<uint64_t, std::pair<StoreUid, uint64_t>> room;  // by slot
    for (const auto& [uid, store] : stores_) {
      if (store.state != StoreState::kServing || store.hello.tier != tier) continue;
      const uint64_t budget = store.hello.budget_bytes;
      const uint64_t taken = when_empty ? 0 : Fixed(uid);
      room[store.slot] = {uid, budget > taken ? budget - taken : 0};
    }
    std::vector<StoreUid> chosen;
    uint64_t last = UINT64_MAX;
    for (const RangeBytes& range : command.ranges) {
      const uint64_t bytes = PagesUp(range.size_bytes);
      if (last == UINT64_MAX || room[last].second < bytes) {
        for (const auto& [slot, entry] : room) {
          if (last == UINT64_MAX || entry.second > room[last].second) last = slot;
        }
      }
      if (last == UINT64_MAX || room[last].second < bytes) break;
      room[last].second -= bytes;
      chosen.push_back(room[last].first);
    }
    if (chosen.size() == command.ranges.size()) return chosen;
  }
  return {};
}

void ReferenceModel::Do(const CancelReservation& command) {
  for (MReservation& it : reservations_) {
    const bool is_it = std::holds_alternative<WriteId>(command.which)
                           ? it.request.write_id == std::get<WriteId>(command.which)
                           : it.request.request == std::get<RequestId>(command.which) &&
                                 it.state != MReservation::kExpired;
    if (!is_it) continue;
    Cancel(&it);
    ExpectAnswer(command.ticket, "ended 1");
    return;
  }
  ExpectAnswer(command.ticket, "ended 0");
}

void ReferenceModel::Do(const EvictRows& command) {
  uint64_t count = 0;
  uint64_t bytes = 0;
  uint64_t pinned = 0;
  std::vector<Thing*> doomed;
  for (Thing& thing : things_) {
    if (thing.kind != Kind::kRow && thing.kind != Kind::kFragment) continue;
    if (!command.keys.empty()) {
      if (!absl::c_linear_search(command.keys, thing.key)) continue;
    } else if (command.key_namespace.has_value() && thing.name_space != *command.key_namespace) {
      continue;
    }
    if (now_ - absl::Milliseconds(thing.last_used_ms) < command.idle_min) continue;
    if (!thing.leases.empty()) {
      ++pinned;
      continue;
    }
    ++count;
    for (const MSlab& slab : thing.slabs) bytes += slab.bytes;
    doomed.push_back(&thing);
  }
  ExpectAnswer(command.ticket, absl::StrCat("evicted ", count, " ", bytes, " pinned ", pinned));
  if (command.dry_run) return;
  for (Thing* thing : doomed) Doom(thing);
}

}  // namespace kvmesh::meta::testing
