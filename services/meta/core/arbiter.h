// The arbiter: sole writer of rows, reservations, leases and the order of eviction, as one state
// machine. Commands go in one at a time; effects come out. Pure: time, ids and randomness are
// arguments. docs/arbiter.md has its state tables.
//
// Not thread-safe: one writer thread owns it. Order of calls: Apply with any command at any time;
// Apply(Tick) at NextTimer() at the latest; Apply(GoOn) soon while HasMore(). What may concern any
// number of slabs is done in steps of bounded length, so that no command waits long for another:
// a store's end of inventory, eviction, forgetting. Commands of a stream that was superseded,
// closed or never said hello count for nothing. Queries are const and belong between two commands.
//
// Invariants, after every command:
// - a store's bytes are the sums over its slabs by state; none is free before the store's answer;
// - what is granted never passes a store's budget, in-flight, deleting and quarantined bytes
//   included;
// - what is granted never passes a quota, in-flight and waiting bytes included, that was known
//   before; one that is lowered is met by evictions;
// - no leased row, and none that is being written, is a victim;
// - at most one live ROW reservation per key, at most one row per end key;
// - a row is open (RowOpened without RowClosed) exactly while live slabs of one tokenisation, of
//   one write or of promoted fragments, cover all layers;
// - every lease, reservation, waiter and fragment ends by itself, through Tick.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "services/meta/core/commands.h"
#include "services/meta/core/effects.h"
#include "services/meta/core/evictions.h"
#include "services/meta/core/options.h"
#include "services/meta/core/readers.h"

namespace kvmesh::meta {

struct ArbiterCounts {
  uint64_t rows = 0;  // open
  uint64_t fragments = 0;
  uint64_t reservations = 0;
  uint64_t leases = 0;
  uint64_t waiters = 0;
  uint64_t namespaces = 0;
  // Since the start, by name; the names are few and fixed.
  std::map<std::string, uint64_t> events;
};

struct RowFilter {
  std::optional<Sha256Digest> key;
  bool rows_only = true;  // else fragments, writes and what is being deleted too
};

class Arbiter {
 public:
  explicit Arbiter(const ArbiterOptions& options);
  Arbiter(const Arbiter&) = delete;
  Arbiter& operator=(const Arbiter&) = delete;

  std::vector<Effect> Apply(const Command& command, MonoTime now);
  // When Tick wants to be applied; infinite for never.
  MonoTime NextTimer() const;
  // Whether something is under way that GoOn goes on with.
  bool HasMore() const;

  // In the order of their ids, from the first above `after` (from the start: none) on.
  std::vector<RowSnapshot> ListRows(std::optional<RowId> after, size_t count_max,
                                    const RowFilter& filter, MonoTime now) const;
  // By serial, from the first above `after` on.
  std::vector<ReservationSnapshot> ListReservations(uint64_t after, size_t count_max,
                                                    MonoTime now) const;
  std::vector<StoreSnapshot> Stores() const;
  ArbiterCounts Counts() const;
  const Incarnation& incarnation() const { return ledger_.incarnation; }

 private:
  void Do(const Abandon& command);
  void Do(const GoOn& command);
  void Do(const Tick&) {}
  void Do(const EvictRows& command) { evictions_.Apply(command); }
  void Do(const Checkout& command) { readers_.Apply(command); }
  void Do(const Renew& command) { readers_.Apply(command); }
  void Do(const Checkin& command) { readers_.Apply(command); }
  void Do(const RowHit& command) { readers_.Apply(command); }
  void Do(const AwaitKey& command) { readers_.Apply(command); }
  void Do(const AwaitFragment& command) { readers_.Apply(command); }
  void Do(const Reserve& command) { reservations_.Apply(command); }
  void Do(const CancelReservation& command) { reservations_.Apply(command); }
  void Do(const StoreHello& command) { attachments_.Apply(command); }
  void Do(const StoreInventory& command) { attachments_.Apply(command); }
  void Do(const SlabAnnounced& command) { attachments_.Apply(command); }
  void Do(const SlabRemoved& command) { attachments_.Apply(command); }
  void Do(const SlabVerified& command) { attachments_.Apply(command); }
  void Do(const StoreHeartbeat& command) { attachments_.Apply(command); }
  void Do(const StorePong& command) { attachments_.Apply(command); }
  void Do(const StoreGone& command) { attachments_.Apply(command); }

  void RunTimers();
  void Settle();

  Ledger ledger_;
  Rows rows_;
  Room room_;
  Quotas quotas_;
  Reservations reservations_;
  Attachments attachments_;
  Readers readers_;
  Evictions evictions_;
};

}  // namespace kvmesh::meta
