// The arbiter and the stores of a simulated mesh in one place: slabs are real bytes, rows what the
// slabs of one write cover. It answers at once; callers bring the delays.
//
// Simple on purpose: the router's and the shards' side are what is tested. Faults: away for a
// while, rows that go, bytes that flip.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "services/router/core/effects.h"
#include "services/shard/core/checkpoint.h"

namespace kvmesh::sim {

class SimArbiter {
 public:
  SimArbiter(uint32_t layer_count, uint64_t seed) : layer_count_(layer_count), random_(seed) {}

  // Away: every question is answered UNAVAILABLE, and stores take and give nothing.
  void GoAway(MonoTime until) { away_until_ = until; }
  bool away(MonoTime now) const { return now < away_until_; }

  // For routers.
  absl::StatusOr<std::optional<router::FoundRow>> Lookup(const router::LookupRow& asked);
  absl::StatusOr<router::CheckpointRead> Read(const router::ReadCheckpoint& asked,
                                              const text::Tokenizer& tokenizer) const;
  // NotFound: none is there (now).
  absl::StatusOr<router::FoundFragment> Fragment(const router::AwaitFragment& asked);
  absl::StatusOr<router::Reservation> Reserve(const router::ReserveRow& asked);
  void Cancel(const router::CancelReservation& asked);
  void End(const router::EndLease& asked);

  // For shards. A row's slab counts only under a reservation that lives.
  WriteId ReserveFragment();
  void Put(const std::string& file, bool fragment);
  // The file; null: it is not there.
  const std::string* Get(const forward::SlabRef& slab) const;

  // One slab and all of its write, pinned or not.
  void LoseOne();
  void FlipAByte();

  size_t leases() const { return leases_.size(); }
  size_t slabs() const { return slabs_.size(); }

 private:
  struct Stored {
    forward::SlabRef ref;
    std::string file;
    std::vector<uint32_t> ids;
    std::string text;
    std::vector<std::pair<uint32_t, uint64_t>> cuts;  // tokens, bytes; the end last
    bool fragment = false;
  };
  struct Reserved {
    router::RequestId request;
    Sha256Digest key;
    std::vector<LayerRange> ranges;
  };

  WriteId NextWrite();
  // The slabs of each write that covers all layers.
  std::vector<std::vector<const Stored*>> Rows() const;

  const uint32_t layer_count_;
  std::mt19937_64 random_;
  MonoTime away_until_;
  uint64_t writes_ = 0;
  std::map<std::string, Stored> slabs_;  // by name
  std::map<WriteId, Reserved> reserved_;
  std::set<router::LeaseId> leases_;
};

}  // namespace kvmesh::sim
