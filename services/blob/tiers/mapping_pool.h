// Anonymous memory that is used again: the first touch of a fresh page costs more than all else
// that a put does. A mapping that is larger than wanted is cut in two.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"

namespace kvmesh::blob {

struct Mapping {
  char* data = nullptr;
  uint64_t bytes = 0;
};

class MappingPool {
 public:
  MappingPool() = default;
  ~MappingPool();
  MappingPool(const MappingPool&) = delete;
  MappingPool& operator=(const MappingPool&) = delete;

  // At least `bytes`, in whole pages, with whatever they last held; then idle mappings take at most
  // `idle_bytes_max`. ResourceExhausted MEDIUM_FULL: the system gives none.
  absl::StatusOr<Mapping> Take(uint64_t bytes, uint64_t idle_bytes_max);
  void GiveBack(const Mapping& mapping);
  // Idle mappings go until the rest takes at most so much.
  void Trim(uint64_t idle_bytes_max);

 private:
  void Keep(const Mapping& mapping) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TrimLocked(uint64_t idle_bytes_max) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  uint64_t idle_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::multimap<uint64_t, char*> idle_ ABSL_GUARDED_BY(mutex_);  // by size
};

}  // namespace kvmesh::blob
