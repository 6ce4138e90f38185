// What comes out of the arbiter, in order: answers to callers, commands to stores, and the deltas
// that the read index follows. Applied in this order by one thread, the deltas make an index that
// equals some prefix of history.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "services/meta/core/types.h"

namespace kvmesh::meta {

// ---- Answers ----

struct LeaseGrant {
  LeaseId lease;
  absl::Duration ttl;
  RowSnapshot row;
};
struct FragmentGrant {
  LeaseId lease;
  absl::Duration ttl;
  size_t position = 0;  // in AwaitFragment::positions
  PlacedSlab slab;
};
struct ReservationGrant {
  WriteId write_id;
  std::vector<ReservedRange> ranges;
  absl::Duration ttl;
};
struct RenewResult {
  std::vector<LeaseId> unknown_leases;
  std::vector<WriteId> unknown_writes;
};
struct Ended {
  bool ended = false;  // false: there was none
};
struct EvictResult {
  std::vector<RowSnapshot> rows;  // the first ArbiterLimits::evicted_listed_max
  uint64_t row_count = 0;
  uint64_t size_bytes = 0;
  uint64_t pinned_count = 0;  // left alone
};
using Answer = std::variant<absl::Status, LeaseGrant, FragmentGrant, ReservationGrant, RowSnapshot,
                            RenewResult, Ended, EvictResult>;
struct Reply {
  Ticket ticket{0};
  Answer answer;  // a Status is never OK
};

// ---- To stores ----

struct Welcome {
  Incarnation incarnation;
};
struct DeleteSlab {
  SlabName name;
};
struct VerifySlab {
  SlabName name;
};
struct DescribeSlab {
  SlabName name;
};
struct SlabUse {
  SlabName name;
  uint32_t hit_count = 0;
  absl::Duration idle;
};
struct RecordUse {
  std::vector<SlabUse> uses;
};
struct Ping {};
struct ToStore {
  StreamId stream{0};
  std::variant<Welcome, DeleteSlab, VerifySlab, DescribeSlab, RecordUse, Ping> message;
};
// Ends the stream; nothing more is sent on it, and what still comes from it counts for nothing.
struct CloseStream {
  StreamId stream{0};
  absl::Status status;
};

// ---- Deltas ----

struct NamespaceOpened {
  NamespaceId id{0};
  slab::KeyNamespace key_namespace;
};
struct NamespaceClosed {  // no row of it is left; the id may be used again
  NamespaceId id{0};
};
// Once a store, before any row names its slot; again when address or tier change.
struct StoreOpened {
  StoreSlot slot{0};
  StoreUid uid;
  std::string address;
  Tier tier = Tier::kRam;
};
// A row may be offered only while all stores that hold its slabs are readable; a store is not when
// it is opened.
struct StoreReadable {
  StoreSlot slot{0};
  bool readable = false;
};
struct RowSlab {
  LayerRange layers;
  WriteId write_id;
  StoreSlot slot{0};
  uint64_t size_bytes = 0;
};
struct RowOpened {
  RowId row{0};
  NamespaceId key_namespace{0};
  Sha256Digest key;  // of the end, as are the next five
  Sha256Digest tokens_sha256;
  uint64_t block_hash = 0;
  uint32_t tail_hash = 0;
  uint32_t token_count = 0;
  uint32_t text_bytes = 0;
  MonoTime last_used;
  std::vector<slab::CutPoint> cut_points;  // the inner ones, ascending: those that all slabs list
  std::vector<RowSlab> slabs;              // by first layer
};
struct RowClosed {  // the id may be used again
  RowId row{0};
  GoneCause cause = GoneCause::kEvicted;
  MonoTime at;
};
struct RowUsed {
  RowId row{0};
  MonoTime last_used;
};

using Effect = std::variant<Reply, ToStore, CloseStream, NamespaceOpened, NamespaceClosed,
                            StoreOpened, StoreReadable, RowOpened, RowClosed, RowUsed>;

}  // namespace kvmesh::meta
