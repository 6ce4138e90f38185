// The things of the reference model and how they change.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/meta/arbiter_values.h"
#include "tests/unit/meta/reference_model.h"

namespace kvmesh::meta::testing {
namespace {

bool SameText(const SlabFacts& a, const SlabFacts& b) {
  return a.tokens_sha256 == b.tokens_sha256 && a.token_count == b.token_count &&
         a.text_bytes == b.text_bytes && a.block_hash == b.block_hash &&
         a.tail_hash == b.tail_hash && a.ends_inside_character == b.ends_inside_character;
}

}  // namespace

// ---- Things ----

ReferenceModel::Thing* ReferenceModel::NewThing(Kind kind, const Sha256Digest& key,
                                                const slab::KeyNamespace& name_space) {
  things_.push_back({.kind = kind,
                     .key = key,
                     .name_space = name_space,
                     .last_used_ms = absl::ToInt64Milliseconds(now_)});
  return &things_.back();
}

void ReferenceModel::Remove(Thing* thing) {
  const std::string model = thing->name_space.model_fp;
  things_.remove_if([thing](const Thing& it) { return &it == thing; });
  if (absl::c_none_of(things_,
                      [&model](const Thing& it) { return it.name_space.model_fp == model; })) {
    model_layers_.erase(model);
    quotas_.erase(model);
  }
}

ReferenceModel::Thing* ReferenceModel::RowOf(const Sha256Digest& key) {
  for (Thing& thing : things_) {
    if (thing.kind == Kind::kRow && thing.key == key) return &thing;
  }
  return nullptr;
}

bool ReferenceModel::Readable(const Thing& thing) const {
  return absl::c_all_of(thing.slabs, [this](const MSlab& it) { return Serves(it.store); });
}

void ReferenceModel::MakeFragment(Thing* thing) {
  thing->kind = Kind::kFragment;
  thing->fragment_end = now_ + limits_.fragment_ttl;
}

void ReferenceModel::Split(Thing* thing) {
  while (thing->slabs.size() > 1) {
    Thing* part = NewThing(Kind::kFragment, thing->key, thing->name_space);
    part->text = thing->text;
    part->last_used_ms = thing->last_used_ms;
    part->hits = thing->hits;
    part->leases = thing->leases;
    part->slabs.push_back(thing->slabs.back());
    thing->slabs.pop_back();
    MakeFragment(part);
  }
  MakeFragment(thing);
}

void ReferenceModel::OpenRow(Thing* thing) {
  thing->kind = Kind::kRow;
  thing->cut_points = thing->slabs.front().facts.cut_points;
  for (MSlab& slab : thing->slabs) {
    const std::vector<slab::CutPoint> before = thing->cut_points;
    thing->cut_points.clear();
    for (const slab::CutPoint& point : before) {
      if (absl::c_linear_search(slab.facts.cut_points, point)) thing->cut_points.push_back(point);
    }
    slab.cuts_known = false;
  }
}

void ReferenceModel::CloseRow(Thing* thing) {
  thing->cut_points.clear();
  for (MSlab& slab : thing->slabs) slab.facts.cut_points.clear();
}

void ReferenceModel::Doom(Thing* thing) {
  thing->was_row = thing->kind == Kind::kRow;
  if (thing->was_row) CloseRow(thing);
  thing->kind = Kind::kDoomed;
  thing->leases.clear();
  for (MSlab& slab : thing->slabs) {
    slab.state = SlabState::kDeleting;
    if (Serves(slab.store)) ToStoreOf(slab.store, "delete " + Describe(slab.facts.name));
  }
  if (thing->slabs.empty()) Remove(thing);
}

void ReferenceModel::DoomSlab(Thing* thing, size_t slab) {
  if (thing->slabs.size() > 1) {
    Thing* part = NewThing(Kind::kDoomed, thing->key, thing->name_space);
    part->text = thing->text;
    part->last_used_ms = thing->last_used_ms;
    part->hits = thing->hits;
    part->slabs.push_back(thing->slabs[slab]);
    thing->slabs.erase(thing->slabs.begin() + static_cast<ptrdiff_t>(slab));
    thing = part;
  }
  Doom(thing);
}

// The store has it no more.
void ReferenceModel::Drop(Thing* thing, size_t slab) {
  const SlabName name = thing->slabs[slab].facts.name;
  const StoreUid store = thing->slabs[slab].store;
  if (thing->kind == Kind::kWriting && !OnVerified(thing, slab, false)) {
    Cancel(ReservationOf(thing));
  }
  std::tie(thing, slab) = Find(name, store);
  if (thing->kind == Kind::kRow) {
    CloseRow(thing);
    Split(thing);
    std::tie(thing, slab) = Find(name, store);
  }
  thing->slabs.erase(thing->slabs.begin() + static_cast<ptrdiff_t>(slab));
  if (thing->slabs.empty()) Remove(thing);
}

bool ReferenceModel::HasSlabs(const Reserve& request) const {
  return absl::c_any_of(things_, [&request](const Thing& thing) {
    return thing.key == request.key && absl::c_any_of(thing.slabs, [&request](const MSlab& slab) {
             return slab.facts.name.write_id == request.write_id;
           });
  });
}

void ReferenceModel::Link(const StoreUid& store, const SlabFacts& facts) {
  const auto [thing, index] = Find(facts.name, store);
  const std::optional<uint32_t> known = ModelLayers(facts.key_namespace);
  const uint32_t layers = known.value_or(facts.model_layers);
  const bool fits =
      (!known.has_value() || facts.model_layers == 0 || facts.model_layers == *known) &&
      (layers == 0 || facts.name.layers.end <= layers);
  if (thing == nullptr) {
    const auto cancelled = cancelled_.find(facts.name.write_id);
    const bool unwanted =
        cancelled != cancelled_.end() && now_ < cancelled->second + limits_.cancelled_memory;
    Thing* fragment = NewThing(Kind::kFragment, facts.name.key, facts.key_namespace);
    fragment->text = facts;
    fragment->last_used_ms = absl::ToInt64Milliseconds(now_ - facts.idle);
    fragment->hits = facts.hit_count;
    fragment->slabs.push_back({.facts = facts,
                               .store = store,
                               .state = SlabState::kLive,
                               .confirmed = true,
                               .cuts_known = true,
                               .bytes = facts.size_bytes});
    if (unwanted || !fits) {
      Doom(fragment);
      return;
    }
    MakeFragment(fragment);
    if (facts.model_layers != 0) Learn(facts.key_namespace, facts.model_layers);
    return;
  }
  MSlab& slab = thing->slabs[index];
  slab.confirmed = true;
  if (slab.state == SlabState::kDeleting) return;
  if (slab.state == SlabState::kReserved) {
    const bool too_large = facts.size_bytes > slab.bytes;
    slab.bytes = facts.size_bytes;
    const bool other_text = thing->text.token_count != 0 && !SameText(thing->text, facts);
    if (other_text || too_large || !fits) {
      Cancel(ReservationOf(thing));
      return;
    }
    thing->text = facts;
    slab.facts = facts;
    slab.state = SlabState::kLive;
    slab.cuts_known = true;
    OnLinked(thing);
    return;
  }
  const bool same = SameText(thing->text, facts) && slab.bytes == facts.size_bytes &&
                    slab.facts.payload_crc32c == facts.payload_crc32c;
  if (same) {
    if (thing->kind != Kind::kFragment || slab.cuts_known) return;
    slab.cuts_known = true;
    slab.cuts_asked = false;
    slab.facts.cut_points = facts.cut_points;
    return;
  }
  if (thing->kind == Kind::kWriting) {
    Cancel(ReservationOf(thing));
    return;
  }
  if (thing->kind == Kind::kRow) {
    CloseRow(thing);
    Split(thing);
  }
  const auto [again, at] = Find(facts.name, store);
  DoomSlab(again, at);
}

void ReferenceModel::OnLinked(Thing* thing) {
  MReservation* reservation = ReservationOf(thing);
  reservation->ends = now_ + limits_.reservation_ttl;
  if (absl::c_any_of(thing->slabs, [](const MSlab& it) { return it.state != SlabState::kLive; })) {
    return;
  }
  const ReservationKind kind = reservation->request.kind;
  EraseReservation(reservation);
  if (kind == ReservationKind::kFragment) {
    MakeFragment(thing);
    return;
  }
  Thing* row = RowOf(thing->key);
  if (thing->text.ends_inside_character || (row != nullptr && Readable(*row))) {
    Split(thing);
    return;
  }
  if (row != nullptr) {
    CloseRow(row);
    Split(row);
  }
  OpenRow(thing);
}

void ReferenceModel::Touch(Thing* thing) {
  thing->last_used_ms = absl::ToInt64Milliseconds(now_);
  ++thing->hits;
}

std::pair<ReferenceModel::Thing*, size_t> ReferenceModel::Find(const SlabName& name,
                                                               const StoreUid& store) {
  for (Thing& thing : things_) {
    for (size_t i = 0; i < thing.slabs.size(); ++i) {
      if (thing.slabs[i].facts.name == name && thing.slabs[i].store == store) return {&thing, i};
    }
  }
  return {nullptr, 0};
}

std::optional<uint32_t> ReferenceModel::ModelLayers(const slab::KeyNamespace& name_space) const {
  const auto found = model_layers_.find(name_space.model_fp);
  if (found == model_layers_.end()) return std::nullopt;
  return found->second;
}

void ReferenceModel::Learn(const slab::KeyNamespace& name_space, uint32_t layers) {
  model_layers_.try_emplace(name_space.model_fp, layers);
}

// ---- Reservations ----

void ReferenceModel::Cancel(MReservation* reservation) {
  if (reservation->ticket.has_value()) ExpectAnswer(*reservation->ticket, "ABORTED CANCELLED");
  if (reservation->state != MReservation::kWaiting) {
    cancelled_[reservation->request.write_id] = now_;
  }
  Thing* thing = reservation->thing;
  EraseReservation(reservation);
  Doom(thing);
}

void ReferenceModel::EraseReservation(MReservation* reservation) {
  reservations_.remove_if([reservation](const MReservation& it) { return &it == reservation; });
}

ReferenceModel::MReservation* ReferenceModel::ReservationOf(const Thing* thing) {
  for (MReservation& it : reservations_) {
    if (it.thing == thing) return &it;
  }
  return nullptr;
}

bool ReferenceModel::OnVerified(Thing* thing, size_t slab, bool sound) {
  MReservation* reservation = ReservationOf(thing);
  if (reservation == nullptr || reservation->state != MReservation::kExpired) return false;
  if (thing->slabs.size() == 1) EraseReservation(reservation);
  if (!sound) {
    DoomSlab(thing, slab);
    return true;
  }
  if (thing->slabs.size() > 1) {
    Thing* part = NewThing(Kind::kFragment, thing->key, thing->name_space);
    part->text = thing->text;
    part->last_used_ms = thing->last_used_ms;
    part->slabs.push_back(thing->slabs[slab]);
    thing->slabs.erase(thing->slabs.begin() + static_cast<ptrdiff_t>(slab));
    thing = part;
  }
  MakeFragment(thing);
  return true;
}

// ---- Sums ----

bool ReferenceModel::Serves(const StoreUid& uid) const {
  const auto found = stores_.find(uid);
  return found != stores_.end() && found->second.state == StoreState::kServing;
}

uint64_t ReferenceModel::Live(const StoreUid& uid) const {
  uint64_t bytes = 0;
  for (const Thing& thing : things_) {
    for (const MSlab& it : thing.slabs) {
      if (it.store == uid && it.state == SlabState::kLive) bytes += it.bytes;
    }
  }
  return bytes;
}

uint64_t ReferenceModel::Reserved(const StoreUid& uid) const {
  uint64_t bytes = 0;
  for (const Thing& thing : things_) {
    for (const MSlab& it : thing.slabs) {
      if (it.store == uid && it.state == SlabState::kReserved) bytes += it.bytes;
    }
  }
  return bytes;
}

uint64_t ReferenceModel::Deleting(const StoreUid& uid) const {
  uint64_t bytes = 0;
  for (const Thing& thing : things_) {
    for (const MSlab& it : thing.slabs) {
      if (it.store == uid && it.state == SlabState::kDeleting) bytes += it.bytes;
    }
  }
  return bytes;
}

uint64_t ReferenceModel::Waiting(const StoreUid& uid) const {
  uint64_t bytes = 0;
  for (const MReservation& it : reservations_) {
    if (it.state != MReservation::kWaiting) continue;
    for (size_t i = 0; i < it.stores.size(); ++i) {
      if (it.stores[i] != uid) continue;
      bytes += (it.request.ranges[i].size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    }
  }
  return bytes;
}

uint64_t ReferenceModel::Evictable(const StoreUid& uid) const {
  uint64_t bytes = 0;
  for (const Thing& thing : things_) {
    if (thing.kind != Kind::kRow && thing.kind != Kind::kFragment) continue;
    if (!thing.leases.empty()) continue;
    for (const MSlab& it : thing.slabs) {
      if (it.store == uid) bytes += it.bytes;
    }
  }
  return bytes;
}

uint64_t ReferenceModel::Fixed(const StoreUid& uid) const {
  return Reserved(uid) + Waiting(uid) + stores_.at(uid).quarantined + Live(uid) - Evictable(uid);
}

void ReferenceModel::EndLease(const LeaseId& lease) {
  leases_.erase(lease);
  for (Thing& thing : things_) thing.leases.erase(lease);
}

}  // namespace kvmesh::meta::testing
