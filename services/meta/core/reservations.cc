#include "services/meta/core/reservations.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/algorithm/container.h"
#include "common/base/limits.h"
#include "services/meta/core/errors.h"

namespace kvmesh::meta {
namespace {

constexpr char kWriteIdInUse[] = "write_id is in use";

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

uint64_t BytesOf(const std::vector<WritePart>& parts) {
  uint64_t bytes = 0;
  for (const WritePart& part : parts) bytes += part.bytes();
  return bytes;
}

}  // namespace

// ---- Requests ----

void Reservations::Apply(const Reserve& command) {
  if (absl::Status checked = Check(command); !checked.ok()) {
    ledger_.Answer(command.ticket, std::move(checked));
    return;
  }
  if (Repeat(command)) return;
  if (absl::Status checked = CheckKey(command); !checked.ok()) {
    ledger_.Answer(command.ticket, std::move(checked));
    return;
  }
  std::vector<WritePart> parts;
  parts.reserve(command.ranges.size());
  for (const RangeBytes& range : command.ranges) {
    const uint64_t pages = (range.size_bytes + kPageBytes - 1) / kPageBytes;
    parts.push_back({.layers = range.layers, .pages = static_cast<uint32_t>(pages)});
  }
  const uint64_t quota = quotas_.Learn(command);
  if (absl::Status admitted = quotas_.Admit(command.key_namespace, quota, BytesOf(parts));
      !admitted.ok()) {
    ledger_.Count("reservations_over_quota");
    ledger_.Answer(command.ticket, std::move(admitted));
    return;
  }
  const std::vector<Tier> tiers = command.tier.has_value()
                                      ? std::vector<Tier>{*command.tier}
                                      : ledger_.options.tiers.Of(command.reason);
  if (absl::Status chosen = room_.Choose(tiers, &parts); !chosen.ok()) {
    ledger_.Count("reservations_refused");
    ledger_.Answer(command.ticket, std::move(chosen));
    return;
  }
  quotas_.OnReserved(Add(command, std::move(parts)), quota);
}

absl::Status Reservations::Check(const Reserve& command) const {
  if (command.model_layers == 0 || command.model_layers > limits::kLayersMax) {
    return Malformed(
        absl::StrCat("model_layers is ", command.model_layers, ", not 1 to ", limits::kLayersMax));
  }
  if (command.ranges.empty() || command.ranges.size() > limits::kHopsMax) {
    return Malformed(absl::StrCat(command.ranges.size(), " ranges, not 1 to ", limits::kHopsMax));
  }
  uint32_t covered = 0;
  for (const RangeBytes& range : command.ranges) {
    if (range.layers.begin >= range.layers.end || range.layers.end > command.model_layers) {
      return Malformed(absl::StrCat("layers [", range.layers.begin, ", ", range.layers.end,
                                    ") are no range of ", command.model_layers, " layers"));
    }
    if (range.size_bytes == 0 || range.size_bytes > kSlabBytesMax) {
      return Malformed(
          absl::StrCat("size_bytes is ", range.size_bytes, ", not 1 to ", kSlabBytesMax));
    }
    if (command.kind == ReservationKind::kRow && range.layers.begin != covered) {
      return Malformed(absl::StrCat("a range begins with layer ", range.layers.begin, ", not ",
                                    covered, ": those of a row follow one another"));
    }
    covered = range.layers.end;
  }
  if (command.kind == ReservationKind::kRow && covered != command.model_layers) {
    return Malformed(
        absl::StrCat("the ranges end at layer ", covered, " of ", command.model_layers));
  }
  if (command.kind == ReservationKind::kFragment && command.ranges.size() != 1) {
    return Malformed(absl::StrCat(command.ranges.size(), " ranges of a fragment, not 1"));
  }
  const std::optional<NamespaceId> id = ledger_.namespaces.Find(command.key_namespace);
  const uint32_t known = id.has_value() ? ledger_.namespaces.model_layers(*id) : 0;
  if (known != 0 && known != command.model_layers) {
    return Malformed(absl::StrCat("model_layers is ", command.model_layers,
                                  "; this namespace's model has ", known));
  }
  return absl::OkStatus();
}

bool Reservations::Repeat(const Reserve& command) {
  const auto known = by_request_.find(command.request);
  if (known == by_request_.end()) return false;
  Reservation& reservation = all_.at(known->second);
  if (ledger_.slabs.group(reservation.group).key != command.key) {
    ledger_.Answer(command.ticket, Malformed("request_id is that of another key's reservation"));
    return true;
  }
  if (reservation.state == State::kReserved) {
    SetEnd(reservation, ledger_.now + ledger_.limits().reservation_ttl);
    ledger_.Answer(command.ticket, GrantOf(reservation));
    return true;
  }
  by_ticket_.erase(*reservation.ticket);
  ledger_.Answer(*reservation.ticket,
                 Refusal(absl::AbortedError("the same request came again"), "SUPERSEDED"));
  reservation.ticket = command.ticket;
  by_ticket_[command.ticket] = reservation.serial;
  return true;
}

absl::Status Reservations::CheckKey(const Reserve& command) const {
  if (by_write_.contains(command.write_id) || HasSlabs(command.key, command.write_id) ||
      ledger_.cancelled.Contains(command.write_id, ledger_.now)) {
    return Malformed(kWriteIdInUse);
  }
  if (command.kind == ReservationKind::kRow) {
    const GroupIndex row = rows_.RowOfKey(command.key);
    if (row != kNone && rows_.Readable(row)) {
      return absl::AlreadyExistsError("the key has a row");
    }
    const SlabTable& slabs = ledger_.slabs;
    for (GroupIndex i = slabs.FirstOfKey(command.key); i != kNone; i = slabs.group(i).next_of_key) {
      const Reservation* other = OfGroup(i);
      if (other != nullptr && other->kind == ReservationKind::kRow &&
          other->state != State::kExpired) {
        return RefusalForNow(absl::AbortedError("another write of this key is under way"),
                             "BEING_WRITTEN");
      }
      if (slabs.group(i).kind != GroupKind::kDoomed || !slabs.group(i).was_row) continue;
      for (const SlabIndex slab : slabs.SlabsOf(i)) {
        if (ledger_.StoreAt(slabs.slab(slab).store).state == StoreState::kLost) continue;
        return RefusalForNow(absl::AbortedError("the key's row is being deleted"), "DELETING");
      }
    }
  }
  if (all_.size() >= ledger_.limits().reservations_max) {
    return TooMany("reservations", ledger_.limits().reservations_max, "TOO_MANY_RESERVATIONS");
  }
  return absl::OkStatus();
}

NamespaceId Reservations::Add(const Reserve& command, std::vector<WritePart> parts) {
  const GroupIndex group = rows_.OpenWrite(command.key_namespace, command.key);
  rows_.LearnModelLayers(command.key_namespace, command.model_layers);
  const uint64_t serial = next_serial_++;
  Reservation& reservation = all_[serial];
  reservation = {.serial = serial,
                 .write_id = command.write_id,
                 .request = command.request,
                 .kind = command.kind,
                 .reason = command.reason,
                 .group = group,
                 .parts = std::move(parts),
                 .ticket = command.ticket,
                 .created = ledger_.now,
                 .ends = ledger_.now + command.room_wait};
  for (const WritePart& part : reservation.parts) {
    ledger_.StoreAt(part.store).waiting_bytes += part.bytes();
    ledger_.RoomChanged(part.store);
  }
  by_write_[command.write_id] = serial;
  by_request_[command.request] = serial;
  by_group_[group] = serial;
  by_ticket_[command.ticket] = serial;
  waiting_.insert(serial);
  expiry_.Add(reservation.ends, serial);
  const NamespaceId id = ledger_.slabs.group(group).key_namespace;
  ledger_.namespaces.AddWaiting(id, BytesOf(reservation.parts));
  return id;
}

void Reservations::Apply(const CancelReservation& command) {
  Reservation* reservation = nullptr;
  if (const auto* write_id = std::get_if<WriteId>(&command.which)) {
    reservation = Find(*write_id);
  } else if (const auto found = by_request_.find(std::get<RequestId>(command.which));
             found != by_request_.end()) {
    reservation = &all_.at(found->second);
  }
  if (reservation != nullptr) Cancel(*reservation);
  ledger_.Answer(command.ticket, Ended{.ended = reservation != nullptr});
}

void Reservations::Abandon(Ticket ticket) {
  const auto found = by_ticket_.find(ticket);
  if (found == by_ticket_.end()) return;
  Reservation& reservation = all_.at(found->second);
  reservation.ticket.reset();
  by_ticket_.erase(found);
  Cancel(reservation);
}

bool Reservations::Renew(const WriteId& write_id) {
  Reservation* reservation = Find(write_id);
  if (reservation == nullptr || reservation->state != State::kReserved) return false;
  SetEnd(*reservation, ledger_.now + ledger_.limits().reservation_ttl);
  return true;
}

void Reservations::KeepAlive(StoreSlot store, const std::vector<WriteId>& open_puts) {
  for (const WriteId& write_id : open_puts) {
    const Reservation* reservation = Find(write_id);
    if (reservation == nullptr) continue;
    const bool is_its_store = absl::c_any_of(
        reservation->parts, [store](const WritePart& part) { return part.store == store; });
    if (is_its_store) Renew(write_id);
  }
}

// ---- Room ----

void Reservations::GrantWaiting() {
  const auto stores_waited_for = static_cast<size_t>(
      absl::c_count_if(ledger_.stores, [](const Store& store) { return store.waiting_bytes > 0; }));
  std::set<StoreSlot> blocked;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const uint64_t serial = *next;
    Reservation& reservation = all_.at(serial);
    if (!StoresServe(reservation)) {
      Refuse(reservation,
             RefusalForNow(absl::UnavailableError("the store chosen was lost"), "NO_STORE"));
    } else if (!IsBehind(blocked, reservation) && Fits(reservation)) {
      // A slab of that name may have come meanwhile.
      if (HasSlabs(ledger_.slabs.group(reservation.group).key, reservation.write_id)) {
        Refuse(reservation, Malformed(kWriteIdInUse));
      } else {
        Grant(reservation);
      }
    } else {
      for (const WritePart& part : reservation.parts) blocked.insert(part.store);
      if (blocked.size() == stores_waited_for) return;
    }
    next = waiting_.upper_bound(serial);
  }
}

// A slab that was there would have the name of one that is to come: nobody could tell which it is.
bool Reservations::HasSlabs(const Sha256Digest& key, const WriteId& write_id) const {
  const SlabTable& slabs = ledger_.slabs;
  for (GroupIndex i = slabs.FirstOfKey(key); i != kNone; i = slabs.group(i).next_of_key) {
    for (SlabIndex k = slabs.group(i).first_slab; k != kNone; k = slabs.slab(k).next) {
      if (slabs.slab(k).write_id == write_id) return true;
    }
  }
  return false;
}

// An earlier one waits for a store of this one.
bool Reservations::IsBehind(const std::set<StoreSlot>& blocked, const Reservation& reservation) {
  return absl::c_any_of(reservation.parts,
                        [&blocked](const WritePart& part) { return blocked.contains(part.store); });
}

bool Reservations::Fits(const Reservation& reservation) const {
  std::map<StoreSlot, uint64_t> bytes;
  for (const WritePart& part : reservation.parts) bytes[part.store] += part.bytes();
  return absl::c_all_of(
      bytes, [this](const auto& entry) { return entry.second <= room_.Free(entry.first); });
}

bool Reservations::StoresServe(const Reservation& reservation) const {
  return absl::c_all_of(reservation.parts,
                        [this](const WritePart& part) { return ledger_.Serves(part.store); });
}

void Reservations::Grant(Reservation& reservation) {
  StopWaiting(reservation);
  for (const WritePart& part : reservation.parts) {
    rows_.AddReserved(reservation.group, part.layers, reservation.write_id, part.store, part.pages);
  }
  reservation.state = State::kReserved;
  SetEnd(reservation, ledger_.now + ledger_.limits().reservation_ttl);
  ledger_.Count("reservations_granted");
  ledger_.Changed(ledger_.slabs.group(reservation.group).key);
  ledger_.Answer(*reservation.ticket, GrantOf(reservation));
  by_ticket_.erase(*reservation.ticket);
  reservation.ticket.reset();
}

void Reservations::StopWaiting(Reservation& reservation) {
  if (waiting_.erase(reservation.serial) == 0) return;
  for (const WritePart& part : reservation.parts) {
    ledger_.StoreAt(part.store).waiting_bytes -= part.bytes();
    ledger_.RoomChanged(part.store);
  }
  ledger_.namespaces.RemoveWaiting(ledger_.slabs.group(reservation.group).key_namespace,
                                   BytesOf(reservation.parts));
}

void Reservations::Refuse(Reservation& reservation, const absl::Status& status) {
  ledger_.Count("reservations_refused");
  StopWaiting(reservation);
  ledger_.Answer(*reservation.ticket, status);
  const GroupIndex group = reservation.group;
  Erase(reservation);
  rows_.Doom(group, GoneCause::kEvicted);
}

}  // namespace kvmesh::meta
