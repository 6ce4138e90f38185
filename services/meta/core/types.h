// Words of the arbiter: ids, slabs, rows and stores as plain values. docs/arbiter.md has the
// states.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "common/slab/content_key.h"
#include "common/slab/format.h"

namespace kvmesh::meta {

using StoreUid = ByteId<struct StoreUidTag, 16>;    // one data directory, for good
using LeaseId = ByteId<struct LeaseIdTag, 16>;      // chosen by the reader
using RequestId = ByteId<struct RequestIdTag, 16>;  // chosen by the writer

// Slots: small numbers that are used again once their holder is gone (RowClosed, NamespaceClosed).
// A store keeps its slot for the life of the process.
enum class RowId : uint32_t {};
enum class NamespaceId : uint32_t {};
enum class StoreSlot : uint16_t {};

// One stream of one store; the adapter numbers them, never twice.
enum class StreamId : uint64_t {};
// One caller that waits for an answer; the adapter numbers them, never twice.
enum class Ticket : uint64_t {};

enum class Tier : uint8_t { kRam = 0, kRamFile, kDisk };
inline constexpr int kTiers = 3;
absl::string_view ToString(Tier tier);

// One process of the arbiter. Of two with one number neither is above the other.
struct Incarnation {
  uint64_t number = 0;
  InstanceId id;
  friend bool operator==(const Incarnation&, const Incarnation&) = default;
};

struct SlabName {
  Sha256Digest key;
  LayerRange layers;
  WriteId write_id;
  friend bool operator==(const SlabName&, const SlabName&) = default;
};

// What a store says of a slab it holds. The adapter has checked shapes: layers are a range of at
// most limits::kLayersMax, size_bytes is in whole pages and at most kSlabBytesMax, text_bytes at
// most slab::kTextBytesMax, cut points ascend and lie before the end.
struct SlabFacts {
  SlabName name;
  slab::KeyNamespace key_namespace;
  uint64_t size_bytes = 0;  // what it counts for in the store's budget
  uint32_t token_count = 0;
  uint32_t text_bytes = 0;
  uint32_t payload_crc32c = 0;
  uint64_t block_hash = 0;
  uint32_t tail_hash = 0;  // with the block hash, where an index files the end (slab::TailHash)
  Sha256Digest tokens_sha256;
  std::vector<slab::CutPoint> cut_points;  // the inner ones
  uint32_t model_layers = 0;               // 0: the slab does not say
  bool ends_inside_character = false;
  uint32_t hit_count = 0;
  absl::Duration idle;
};

inline constexpr uint64_t kPageBytes = slab::kAlignment;
inline constexpr uint64_t kSlabBytesMax = 1ULL << 43;

enum class SlabState : uint8_t {
  kReserved,  // its bytes are reserved; nothing is announced
  kLive,
  kDeleting,  // its store has been, or will be, told; its bytes count until the answer
};
absl::string_view ToString(SlabState state);

enum class RowState : uint8_t {
  kWriting,    // of a reservation
  kAvailable,  // its slabs cover all layers, and all their stores serve
  kStoreLost,  // its slabs cover all layers; a store of one is lost or says its inventory
  kFragment,   // one slab
  kDeleting,
};
absl::string_view ToString(RowState state);

struct PlacedSlab {
  SlabName name;
  SlabState state = SlabState::kLive;
  StoreSlot slot{0};
  StoreUid store;
  std::string address;
  Tier tier = Tier::kRam;
  uint64_t size_bytes = 0;
};

// A row (or what is, was or may become one) as it is at this moment.
struct RowSnapshot {
  RowId id{0};
  RowState state = RowState::kWriting;
  slab::KeyNamespace key_namespace;
  Sha256Digest key;
  Sha256Digest tokens_sha256;
  uint32_t token_count = 0;
  uint32_t text_bytes = 0;
  uint32_t hit_count = 0;
  uint32_t leases = 0;
  absl::Duration idle;
  std::vector<PlacedSlab> slabs;  // by first layer

  // With the key it names the row: its first slab's.
  WriteId write_id() const { return slabs.empty() ? WriteId() : slabs.front().name.write_id; }
};

enum class ReservationKind : uint8_t { kRow, kFragment };

struct RangeBytes {
  LayerRange layers;
  uint64_t size_bytes = 0;  // at most kSlabBytesMax; counted in whole pages
};

struct ReservedRange {
  LayerRange layers;
  StoreUid store;
  std::string address;
  Tier tier = Tier::kRam;
};

enum class ReservationState : uint8_t {
  kWaitingForRoom,
  kReserved,  // nothing has arrived
  kPartial,
  kExpired,  // what has arrived is being verified
};
absl::string_view ToString(ReservationState state);

struct ReservationSnapshot {
  uint64_t serial = 0;  // grows with each
  WriteId write_id;
  Sha256Digest key;
  slab::KeyNamespace key_namespace;
  ReservationKind kind = ReservationKind::kRow;
  slab::SaveReason reason = slab::SaveReason::kCold;
  ReservationState state = ReservationState::kReserved;
  std::vector<ReservedRange> ranges;
  uint32_t slabs_linked = 0;
  uint64_t size_bytes = 0;
  absl::Duration age;
  absl::Duration expires_in;
};

enum class StoreState : uint8_t { kInventory, kServing, kLost };
absl::string_view ToString(StoreState state);

struct StoreSnapshot {
  StoreSlot slot{0};
  StoreUid uid;
  std::string address;
  std::string node;
  Tier tier = Tier::kRam;
  StoreState state = StoreState::kLost;
  uint64_t budget_bytes = 0;
  uint64_t live_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint64_t deleting_bytes = 0;
  uint64_t quarantined_bytes = 0;
  uint64_t slabs = 0;  // live ones

  uint64_t occupied_bytes() const {
    return live_bytes + reserved_bytes + deleting_bytes + quarantined_bytes;
  }
};

// Why a row is no more.
enum class GoneCause : uint8_t {
  kEvicted,    // for room
  kQuota,      // for room in its namespace's quota
  kOperator,   // EvictRows
  kSlabLost,   // a store that held a part came back without it, or stayed away
  kSlabBad,    // a store found a part to be bad
  kDisplaced,  // written anew while a store of it was lost
};
absl::string_view ToString(GoneCause cause);

}  // namespace kvmesh::meta
