// Reservations: the right to write one row or fragment, from the request until its slabs have
// arrived or will not (docs/arbiter.md, "Reservation"). Not thread-safe.
// Invariants: at most one live ROW reservation per key; each ends by itself; waiting for room is
// first come, first served per store.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "services/meta/core/expiry_queue.h"
#include "services/meta/core/quotas.h"
#include "services/meta/core/room.h"

namespace kvmesh::meta {

class Reservations {
 public:
  Reservations(Ledger& ledger, Rows& rows, Room& room, Quotas& quotas)
      : ledger_(ledger), rows_(rows), room_(room), quotas_(quotas) {}

  void Apply(const Reserve& command);
  void Apply(const CancelReservation& command);
  void Abandon(Ticket ticket);
  // Whether it is there and lives.
  bool Renew(const WriteId& write_id);
  // The store names its open Puts.
  void KeepAlive(StoreSlot store, const std::vector<WriteId>& open_puts);

  // A reserved slab of this write has arrived.
  void OnLinked(GroupIndex write);
  // It cannot be completed: all of it is deleted, also what still arrives.
  void Fail(GroupIndex write);
  // The store's word on a slab of an expired reservation. False: it is none.
  bool OnVerified(SlabIndex slab, bool sound);

  // Reservations that wait get their room, in order.
  void GrantWaiting();
  void Expire();
  MonoTime Next() const { return expiry_.Next(); }

  // A write of this key is under way.
  bool LiveOn(const Sha256Digest& key) const;
  // One of this key and these layers is under way.
  bool LiveOn(const Sha256Digest& key, LayerRange layers) const;

  std::vector<ReservationSnapshot> List(uint64_t after, size_t count_max) const;
  size_t size() const { return all_.size(); }

 private:
  enum class State { kWaiting, kReserved, kExpired };
  struct Reservation {
    uint64_t serial = 0;
    WriteId write_id;
    RequestId request;
    ReservationKind kind = ReservationKind::kRow;
    slab::SaveReason reason = slab::SaveReason::kCold;
    GroupIndex group = kNone;
    std::vector<WritePart> parts;
    State state = State::kWaiting;
    std::optional<Ticket> ticket;  // while it waits
    MonoTime created;
    MonoTime ends;
  };

  absl::Status Check(const Reserve& command) const;
  absl::Status CheckKey(const Reserve& command) const;
  // Whether slabs of this write are known, in any store.
  bool HasSlabs(const Sha256Digest& key, const WriteId& write_id) const;
  // Whether the request is known, and answered.
  bool Repeat(const Reserve& command);
  NamespaceId Add(const Reserve& command, std::vector<WritePart> parts);
  void Grant(Reservation& reservation);
  bool Fits(const Reservation& reservation) const;
  static bool IsBehind(const std::set<StoreSlot>& blocked, const Reservation& reservation);
  bool StoresServe(const Reservation& reservation) const;
  void Refuse(Reservation& reservation, const absl::Status& status);
  void ExpireReserved(Reservation& reservation);
  void Cancel(Reservation& reservation);
  void SetEnd(Reservation& reservation, MonoTime ends);
  void StopWaiting(Reservation& reservation);
  void Erase(Reservation& reservation);
  ReservationGrant GrantOf(const Reservation& reservation) const;
  ReservationSnapshot Snapshot(const Reservation& reservation) const;
  Reservation* Find(const WriteId& write_id);
  const Reservation* OfGroup(GroupIndex group) const;

  Ledger& ledger_;
  Rows& rows_;
  Room& room_;
  Quotas& quotas_;
  uint64_t next_serial_ = 1;
  std::map<uint64_t, Reservation> all_;  // by serial
  absl::flat_hash_map<WriteId, uint64_t> by_write_;
  absl::flat_hash_map<RequestId, uint64_t> by_request_;
  absl::flat_hash_map<GroupIndex, uint64_t> by_group_;
  absl::flat_hash_map<Ticket, uint64_t> by_ticket_;
  absl::btree_set<uint64_t> waiting_;
  ExpiryQueue<uint64_t> expiry_;
};

}  // namespace kvmesh::meta
