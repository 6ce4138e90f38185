// What a machine can do at most, measured beside what an engine does: the bounds of its figures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/kernels/peaks.h"

namespace kvmesh::shard {

// Memory that all threads read once, in shares of 256 KiB. Not thread-safe.
class Reading {
 public:
  // At least `bytes`, rounded up to whole shares. `pool` and `peaks` must outlive this.
  // ResourceExhausted: no memory.
  static absl::StatusOr<Reading> Make(ComputePool& pool, const Peaks& peaks, size_t bytes);

  void Run();
  size_t bytes() const { return shares_ * kShare; }

 private:
  static constexpr size_t kShare = size_t{256} << 10;

  Reading(ComputePool& pool, const Peaks& peaks, size_t shares, std::shared_ptr<uint8_t> data);

  ComputePool& pool_;
  const Peaks& peaks_;
  size_t shares_;
  std::shared_ptr<uint8_t> data_;
};

// Each a second.
struct MachineBounds {
  double bytes_read = 0;
  double float_operations = 0;  // fused multiply-adds in registers count as two
  double word_operations = 0;   // likewise, of 16-bit numbers
};

// Of all threads of `pool`, the fastest of a few rounds; reads a buffer of `bytes`. The processor
// must have `set`. Errors of Reading::Make.
absl::StatusOr<MachineBounds> MeasureBounds(ComputePool& pool, InstructionSet set, size_t bytes,
                                            const Clock& clock);

// The most memory that this process ever had, pages of files that it maps included; 0 where the
// system does not say.
uint64_t PeakMemoryBytes();

}  // namespace kvmesh::shard
