// Anonymous memory that is used again: the first touch of a fresh page costs more than all else
// that a put does. A mapping that is larger than wanted is cut in two.
//
// Thread-safe. Invariant: what is mapped, idle mappings included, never passes the limit, unless
// what is in use does.
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
  explicit MappingPool(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  ~MappingPool();
  MappingPool(const MappingPool&) = delete;
  MappingPool& operator=(const MappingPool&) = delete;

  // At least `bytes`, in whole pages, with whatever they last held. ResourceExhausted MEDIUM_FULL:
  // the system gives none.
  absl::StatusOr<Mapping> Take(uint64_t bytes);
  void GiveBack(const Mapping& mapping);

 private:
  void Keep(const Mapping& mapping) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unmap(const Mapping& mapping) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t bytes_max_;
  Mutex mutex_;
  uint64_t mapped_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::multimap<uint64_t, char*> idle_ ABSL_GUARDED_BY(mutex_);  // by size
};

}  // namespace kvmesh::blob
