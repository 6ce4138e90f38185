// The arbiter: sole writer of rows, reservations, leases and the order of eviction, as one state
// machine. Commands go in one at a time; effects come out. Pure: time, ids and randomness are
// arguments. docs/arbiter.md has its state tables.
//
// Not thread-safe: one writer thread owns it. Order of calls: Apply with any command at any time;
// Apply(Tick) at NextTimer() at the latest. Commands of a stream that was superseded, closed or
// never said hello count for nothing. Queries are const and belong between two commands.
//
// Invariants, after every command:
// - a store's bytes are the sums over its slabs by state; none is free before the store's answer;
// - what is granted never passes a store's budget, in-flight, deleting and quarantined bytes
//   included;
// - no leased row, and none that is being written, is a victim;
// - at most one live ROW reservation per key, at most one row per end key;
// - a row is open (RowOpened without RowClosed) exactly while live slabs of one tokenisation, of
//   one write or of promoted fragments, cover all layers;
// - every lease, reservation, waiter and fragment ends by itself, through Tick.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "services/meta/core/commands.h"
#include "services/meta/core/effects.h"

namespace kvmesh::meta {

// Where slabs go, by the reason of the save: the first tier of the list that can make room.
struct TierPolicy {
  std::vector<Tier> cold = {Tier::kRamFile, Tier::kDisk};
  std::vector<Tier> continued = {Tier::kRam};
  std::vector<Tier> finish = {Tier::kDisk, Tier::kRamFile};
  std::vector<Tier> evict = {Tier::kRamFile};
  std::vector<Tier> shutdown = {Tier::kDisk};

  const std::vector<Tier>& Of(slab::SaveReason reason) const;
};

struct ArbiterLimits {
  absl::Duration lease_ttl = absl::Seconds(30);
  absl::Duration reservation_ttl = absl::Seconds(60);
  absl::Duration verify_wait = absl::Seconds(60);  // of what an expired reservation left
  absl::Duration fragment_ttl = absl::Seconds(600);
  absl::Duration cancelled_memory = absl::Seconds(600);
  absl::Duration store_silence_max = absl::Seconds(15);
  absl::Duration store_ping_wait = absl::Seconds(5);
  absl::Duration store_forget = absl::Seconds(600);  // a lost store's slabs
  absl::Duration use_report_interval = absl::Seconds(60);
  double high_watermark = 0.90;  // of a store's budget
  double low_watermark = 0.80;
  size_t leases_max = 65536;
  size_t reservations_max = 4096;
  size_t waiters_max = 4096;
  size_t cancelled_max = 65536;
  size_t gone_max = 4096;
  size_t stores_max = 256;
  size_t evicted_listed_max = 1000;
};

struct ArbiterOptions {
  InstanceId incarnation_id;
  TierPolicy tiers;
  ArbiterLimits limits;
};

struct ArbiterCounts {
  uint64_t rows = 0;  // open
  uint64_t cut_points = 0;
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
  explicit Arbiter(ArbiterOptions options);
  ~Arbiter();
  Arbiter(const Arbiter&) = delete;
  Arbiter& operator=(const Arbiter&) = delete;

  std::vector<Effect> Apply(const Command& command, MonoTime now);
  // When Tick wants to be applied; infinite for never.
  MonoTime NextTimer() const;

  // In the order of their ids, from the first above `after` (from the start: none) on.
  std::vector<RowSnapshot> ListRows(std::optional<RowId> after, size_t count_max,
                                    const RowFilter& filter, MonoTime now) const;
  // By serial, from the first above `after` on.
  std::vector<ReservationSnapshot> ListReservations(uint64_t after, size_t count_max,
                                                    MonoTime now) const;
  std::vector<StoreSnapshot> Stores() const;
  // Rows that went, of this block hash; newest first.
  std::vector<GoneRow> FindGone(uint64_t block_hash) const;
  ArbiterCounts Counts() const;
  const Incarnation& incarnation() const;
};

}  // namespace kvmesh::meta
