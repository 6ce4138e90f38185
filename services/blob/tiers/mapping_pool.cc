#include "services/blob/tiers/mapping_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <iterator>

#include "common/slab/format.h"
#include "services/blob/tiers/file_system.h"

namespace kvmesh::blob {
namespace {

constexpr size_t kIdleMax = 4096;

}  // namespace

MappingPool::~MappingPool() {
  MutexLock lock(&mutex_);
  for (const auto& [bytes, data] : idle_) munmap(data, bytes);
}

absl::StatusOr<Mapping> MappingPool::Take(uint64_t bytes, uint64_t idle_bytes_max) {
  const uint64_t wanted = slab::AlignUp(bytes);
  MutexLock lock(&mutex_);
  if (const auto found = idle_.lower_bound(wanted); found != idle_.end()) {
    const Mapping whole{.data = found->second, .bytes = found->first};
    idle_.erase(found);
    idle_bytes_ -= whole.bytes;
    if (whole.bytes > wanted) {
      Keep({.data = whole.data + wanted, .bytes = whole.bytes - wanted});
    }
    TrimLocked(idle_bytes_max);
    return Mapping{.data = whole.data, .bytes = wanted};
  }
  TrimLocked(idle_bytes_max);
  void* data = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "map", "memory");
  // A fault a 2 MiB page instead of a fault a 4 KiB page, where the system allows it.
  madvise(data, wanted, MADV_HUGEPAGE);
  return Mapping{.data = static_cast<char*>(data), .bytes = wanted};
}

void MappingPool::GiveBack(const Mapping& mapping) {
  MutexLock lock(&mutex_);
  Keep(mapping);
}

void MappingPool::Keep(const Mapping& mapping) {
  if (idle_.size() < kIdleMax) {
    idle_.emplace(mapping.bytes, mapping.data);
    idle_bytes_ += mapping.bytes;
  } else {
    munmap(mapping.data, mapping.bytes);
  }
}

void MappingPool::Trim(uint64_t idle_bytes_max) {
  MutexLock lock(&mutex_);
  TrimLocked(idle_bytes_max);
}

// The largest go first.
void MappingPool::TrimLocked(uint64_t idle_bytes_max) {
  while (idle_bytes_ > idle_bytes_max) {
    const auto largest = std::prev(idle_.end());
    idle_bytes_ -= largest->first;
    munmap(largest->second, largest->first);
    idle_.erase(largest);
  }
}

}  // namespace kvmesh::blob
