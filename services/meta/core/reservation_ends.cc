// How reservations end: complete, failed, cancelled, expired.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "services/meta/core/errors.h"
#include "services/meta/core/reservations.h"

namespace kvmesh::meta {

// ---- Slabs ----

void Reservations::OnLinked(GroupIndex write) {
  Reservation& reservation = all_.at(by_group_.at(write));
  SetEnd(reservation, ledger_.now + ledger_.limits().reservation_ttl);
  const std::vector<SlabIndex> slabs = ledger_.slabs.SlabsOf(write);
  const bool complete = absl::c_all_of(
      slabs, [this](SlabIndex slab) { return ledger_.slabs.slab(slab).state == SlabState::kLive; });
  if (!complete) return;
  const ReservationKind kind = reservation.kind;
  Erase(reservation);
  ledger_.Count("reservations_completed");
  if (kind == ReservationKind::kRow) {
    rows_.CompleteWrite(write);
  } else {
    rows_.CompleteFragment(write);
  }
}

void Reservations::Fail(GroupIndex write) {
  Cancel(all_.at(by_group_.at(write)));
}

bool Reservations::OnVerified(SlabIndex slab, bool sound) {
  const GroupIndex group = ledger_.slabs.slab(slab).group;
  const auto found = by_group_.find(group);
  if (found == by_group_.end()) return false;
  Reservation& reservation = all_.at(found->second);
  if (reservation.state != State::kExpired) return false;
  const bool last = ledger_.slabs.SlabsOf(group).size() == 1;
  if (last) Erase(reservation);
  if (sound) {
    rows_.AdoptSlab(slab);
  } else {
    rows_.DoomSlab(slab);
  }
  return true;
}

// ---- Ends ----

void Reservations::Expire() {
  while (const std::optional<uint64_t> due = expiry_.Due(ledger_.now)) {
    Reservation& reservation = all_.at(*due);
    switch (reservation.state) {
      case State::kWaiting:
        Refuse(reservation, RefusalForNow(absl::ResourceExhaustedError("room was not free in time"),
                                          "NO_ROOM", absl::Seconds(1)));
        break;
      case State::kReserved:
        ExpireReserved(reservation);
        break;
      case State::kExpired: {
        const GroupIndex group = reservation.group;
        Erase(reservation);
        rows_.Doom(group, GoneCause::kEvicted);
        break;
      }
    }
  }
}

// Nothing has arrived: it is dropped. Else what has is verified; OnVerified adopts it.
void Reservations::ExpireReserved(Reservation& reservation) {
  ledger_.Count("reservations_expired");
  const GroupIndex group = reservation.group;
  std::vector<SlabIndex> live;
  for (const SlabIndex slab : ledger_.slabs.SlabsOf(group)) {
    if (ledger_.slabs.slab(slab).state == SlabState::kLive) live.push_back(slab);
  }
  if (live.empty()) {
    Erase(reservation);
    rows_.Doom(group, GoneCause::kEvicted);
    return;
  }
  rows_.DoomReserved(group);
  reservation.state = State::kExpired;
  by_request_.erase(reservation.request);
  ledger_.Changed(ledger_.slabs.group(group).key);
  SetEnd(reservation, ledger_.now + ledger_.limits().verify_wait);
  for (const SlabIndex slab : live) {
    const Store& store = ledger_.StoreAt(ledger_.slabs.slab(slab).store);
    if (store.state != StoreState::kServing) continue;
    ledger_.Emit(
        ToStore{.stream = store.stream, .message = VerifySlab{ledger_.slabs.NameOf(slab)}});
  }
}

void Reservations::Cancel(Reservation& reservation) {
  ledger_.Count("reservations_cancelled");
  StopWaiting(reservation);
  if (reservation.ticket.has_value()) {
    ledger_.Answer(*reservation.ticket,
                   Refusal(absl::AbortedError("the reservation was cancelled"), "CANCELLED"));
  }
  // A write that has its room may have been told to a writer.
  if (reservation.state != State::kWaiting) {
    ledger_.cancelled.Add(reservation.write_id, ledger_.now);
  }
  const GroupIndex group = reservation.group;
  Erase(reservation);
  rows_.Doom(group, GoneCause::kEvicted);
}

void Reservations::SetEnd(Reservation& reservation, MonoTime ends) {
  expiry_.Remove(reservation.ends, reservation.serial);
  reservation.ends = ends;
  expiry_.Add(ends, reservation.serial);
}

void Reservations::Erase(Reservation& reservation) {
  expiry_.Remove(reservation.ends, reservation.serial);
  by_write_.erase(reservation.write_id);
  by_request_.erase(reservation.request);
  by_group_.erase(reservation.group);
  if (reservation.ticket.has_value()) by_ticket_.erase(*reservation.ticket);
  ledger_.Changed(ledger_.slabs.group(reservation.group).key);
  const uint64_t serial = reservation.serial;
  all_.erase(serial);
}

// ---- Questions ----

bool Reservations::LiveOn(const Sha256Digest& key) const {
  const SlabTable& slabs = ledger_.slabs;
  for (GroupIndex i = slabs.FirstOfKey(key); i != kNone; i = slabs.group(i).next_of_key) {
    const Reservation* reservation = OfGroup(i);
    if (reservation != nullptr && reservation->kind == ReservationKind::kRow &&
        reservation->state != State::kExpired) {
      return true;
    }
  }
  return false;
}

bool Reservations::LiveOn(const Sha256Digest& key, LayerRange layers) const {
  const SlabTable& slabs = ledger_.slabs;
  for (GroupIndex i = slabs.FirstOfKey(key); i != kNone; i = slabs.group(i).next_of_key) {
    const Reservation* reservation = OfGroup(i);
    if (reservation == nullptr || reservation->state == State::kExpired) continue;
    if (absl::c_any_of(reservation->parts,
                       [layers](const WritePart& part) { return part.layers == layers; })) {
      return true;
    }
  }
  return false;
}

Reservations::Reservation* Reservations::Find(const WriteId& write_id) {
  const auto found = by_write_.find(write_id);
  return found == by_write_.end() ? nullptr : &all_.at(found->second);
}

const Reservations::Reservation* Reservations::OfGroup(GroupIndex group) const {
  const auto found = by_group_.find(group);
  return found == by_group_.end() ? nullptr : &all_.at(found->second);
}

ReservationGrant Reservations::GrantOf(const Reservation& reservation) const {
  return {.write_id = reservation.write_id,
          .ranges = Snapshot(reservation).ranges,
          .ttl = reservation.ends - ledger_.now};
}

ReservationSnapshot Reservations::Snapshot(const Reservation& reservation) const {
  const Group& group = ledger_.slabs.group(reservation.group);
  ReservationSnapshot snapshot{.serial = reservation.serial,
                               .write_id = reservation.write_id,
                               .key = group.key,
                               .key_namespace = ledger_.namespaces.Get(group.key_namespace),
                               .kind = reservation.kind,
                               .reason = reservation.reason,
                               .age = ledger_.now - reservation.created,
                               .expires_in = reservation.ends - ledger_.now};
  snapshot.ranges.reserve(reservation.parts.size());
  for (const WritePart& part : reservation.parts) {
    const Store& store = ledger_.StoreAt(part.store);
    snapshot.ranges.push_back(
        {.layers = part.layers, .store = store.uid, .address = store.address, .tier = store.tier});
    snapshot.size_bytes += part.bytes();
  }
  for (const SlabIndex slab : ledger_.slabs.SlabsOf(reservation.group)) {
    if (ledger_.slabs.slab(slab).state == SlabState::kLive) ++snapshot.slabs_linked;
  }
  switch (reservation.state) {
    case State::kWaiting:
      snapshot.state = ReservationState::kWaitingForRoom;
      break;
    case State::kReserved:
      snapshot.state =
          snapshot.slabs_linked > 0 ? ReservationState::kPartial : ReservationState::kReserved;
      break;
    case State::kExpired:
      snapshot.state = ReservationState::kExpired;
      break;
  }
  return snapshot;
}

std::vector<ReservationSnapshot> Reservations::List(uint64_t after, size_t count_max) const {
  std::vector<ReservationSnapshot> listed;
  for (auto i = all_.upper_bound(after); i != all_.end() && listed.size() < count_max; ++i) {
    listed.push_back(Snapshot(i->second));
  }
  return listed;
}

}  // namespace kvmesh::meta
