// What goes into the arbiter. One command at a time, in one order; each that carries a ticket is
// answered by exactly one Reply with it, at once or later (Reserve, AwaitKey, AwaitFragment).
// Adapters have checked the shape of every field; what they check is said beside it.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "services/meta/core/types.h"

namespace kvmesh::meta {

// ---- Readers ----

// Reply: LeaseGrant, or NotFound, AlreadyExists, ResourceExhausted TOO_MANY_LEASES.
struct Checkout {
  Ticket ticket{0};
  Sha256Digest key;
  WriteId write_id;
  LeaseId lease;
  // What the lease pins already, if that is a row that can be read, is granted in its place: the
  // answer to an earlier one was lost.
  bool or_held = false;
};

// Reply: RenewResult.
struct Renew {
  Ticket ticket{0};
  std::vector<LeaseId> leases;
  std::vector<WriteId> writes;
};

// Reply: Ended.
struct Checkin {
  Ticket ticket{0};
  LeaseId lease;
  std::vector<SlabName> bad_slabs;
};

// A lookup has found this row. No reply; ignored when the row is gone.
struct RowHit {
  RowId row{0};
  Sha256Digest key;  // a slot may have a new holder
};

// Reply: RowSnapshot, or NotFound, DeadlineExceeded, ResourceExhausted TOO_MANY_WAITERS.
struct AwaitKey {
  Ticket ticket{0};
  slab::KeyNamespace key_namespace;
  Sha256Digest key;
  absl::Duration wait;  // not negative
};

struct FragmentPosition {
  Sha256Digest key;
  Sha256Digest tokens_sha256;
  uint32_t token_count = 0;
};

// Reply: FragmentGrant, or NotFound, DeadlineExceeded, AlreadyExists, ResourceExhausted
// TOO_MANY_WAITERS or TOO_MANY_LEASES.
struct AwaitFragment {
  Ticket ticket{0};
  slab::KeyNamespace key_namespace;
  LayerRange layers;
  std::vector<FragmentPosition> positions;
  absl::Duration appear_wait;
  absl::Duration upload_wait;
  LeaseId lease;
};

// Nobody waits for this answer any more: it will not come. A Reserve that waits for room is
// dropped; one that was answered stays.
struct Abandon {
  Ticket ticket{0};
};

// ---- Writers ----

// Reply: ReservationGrant, or InvalidArgument, AlreadyExists, Aborted BEING_WRITTEN or DELETING,
// ResourceExhausted NO_ROOM, TOO_LARGE, QUOTA or TOO_MANY_RESERVATIONS, Unavailable NO_STORE.
struct Reserve {
  Ticket ticket{0};
  RequestId request;
  ReservationKind kind = ReservationKind::kRow;
  slab::KeyNamespace key_namespace;
  Sha256Digest key;
  uint32_t model_layers = 0;       // 1 to limits::kLayersMax
  std::vector<RangeBytes> ranges;  // 1 to limits::kHopsMax, within the model's layers
  slab::SaveReason reason = slab::SaveReason::kCold;
  std::optional<Tier> tier;  // in place of the policy's
  absl::Duration room_wait;
  // What the namespace may have in all stores, 0: anything. None: as the last one said.
  std::optional<uint64_t> namespace_bytes_max;
  WriteId write_id;  // fresh and random: used if the reservation is made
};

// Reply: Ended. By write_id, or by request.
struct CancelReservation {
  Ticket ticket{0};
  std::variant<WriteId, RequestId> which;
};

// ---- Operators ----

// Reply: EvictResult.
struct EvictRows {
  Ticket ticket{0};
  bool dry_run = false;
  // The first that is there decides; none: everything.
  std::vector<Sha256Digest> keys;
  std::optional<slab::KeyNamespace> key_namespace;
  absl::Duration idle_min;
};

// ---- Stores ----

struct StoreHello {
  StreamId stream{0};
  StoreUid uid;
  InstanceId boot;
  std::string address;
  std::string node;
  Tier tier = Tier::kRam;
  uint64_t budget_bytes = 0;
  std::optional<Incarnation> seen;
};
struct StoreInventory {
  StreamId stream{0};
  std::vector<SlabFacts> slabs;
  bool last = false;
};
struct SlabAnnounced {
  StreamId stream{0};
  SlabFacts slab;
};
enum class RemovalCause { kDeleted, kQuarantined, kOther };
struct SlabRemoved {
  StreamId stream{0};
  SlabName name;
  RemovalCause cause = RemovalCause::kDeleted;
};
struct SlabVerified {
  StreamId stream{0};
  SlabName name;
  bool sound = false;
};
struct StoreHeartbeat {
  StreamId stream{0};
  uint64_t quarantined_bytes = 0;
  std::vector<WriteId> open_puts;
};
struct StorePong {
  StreamId stream{0};
};
struct StoreGone {  // the stream has ended, on whichever side
  StreamId stream{0};
};

// ---- Time ----

struct Tick {};

// Goes on with what is done in steps (Arbiter::HasMore).
struct GoOn {};

using Command =
    std::variant<Checkout, Renew, Checkin, RowHit, AwaitKey, AwaitFragment, Abandon, Reserve,
                 CancelReservation, EvictRows, StoreHello, StoreInventory, SlabAnnounced,
                 SlabRemoved, SlabVerified, StoreHeartbeat, StorePong, StoreGone, Tick, GoOn>;

}  // namespace kvmesh::meta
