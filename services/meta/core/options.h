// Policy and limits of the arbiter.
#pragma once

#include <vector>

#include "services/meta/core/types.h"

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
  double high_watermark = 0.90;  // of a store's budget, or a namespace's quota
  double low_watermark = 0.80;
  size_t leases_max = 65536;
  size_t reservations_max = 4096;
  size_t waiters_max = 4096;
  size_t cancelled_max = 65536;
  size_t stores_max = 256;
  size_t evicted_listed_max = 1000;
  size_t evictions_waiting_max = 16;  // EvictRows under way
  // What one command does at most of that which may be any amount; GoOn does the rest.
  size_t step_slabs = 64;
};

// Of a store's budget, or of a quota.
inline uint64_t HighOf(uint64_t bytes, const ArbiterLimits& limits) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * limits.high_watermark);
}
inline uint64_t LowOf(uint64_t bytes, const ArbiterLimits& limits) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * limits.low_watermark);
}

struct ArbiterOptions {
  InstanceId incarnation_id;
  TierPolicy tiers;
  ArbiterLimits limits;
};

}  // namespace kvmesh::meta
