// Slabs in the memory of this process: gone when it ends. A removed one leaves its memory to the
// next.
#pragma once

#include <map>
#include <memory>

#include "common/base/mutex.h"
#include "services/blob/tiers/mapping_pool.h"
#include "services/blob/tiers/tier.h"

namespace kvmesh::blob {

class RamTier final : public Tier {
 public:
  absl::StatusOr<std::unique_ptr<SlabWrite>> Create(const SlabName& name, uint64_t file_bytes,
                                                    uint64_t spare_bytes_max) override;
  void DropSpare() override { pool_.Trim(0); }
  absl::StatusOr<std::unique_ptr<slab::ByteSource>> Open(const SlabName& name) override;
  absl::Status Remove(const SlabName& name) override;
  // Nothing is kept: memory cannot be looked at afterwards.
  absl::StatusOr<uint64_t> Quarantine(const SlabName& name) override;
  absl::Status WriteUse(const SlabName& name, uint32_t hit_count,
                        uint64_t last_used_time_s) override;
  absl::StatusOr<Recovered> Recover() override { return Recovered{}; }
  uint64_t quarantined_bytes() const override { return 0; }

  class Memory;

 private:
  class Write;
  class Source;

  MappingPool pool_;  // outlives the slabs
  Mutex mutex_;
  // Shared with the readers: a removed slab lives until the last one ends.
  std::map<SlabName, std::shared_ptr<Memory>> slabs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::blob
