#include "services/shard/engine/huge_pages.h"

#include <sys/mman.h>

namespace kvmesh::shard {

std::shared_ptr<uint8_t> MapHugePages(size_t bytes) {
  const size_t mapped = bytes + kHugePage;
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(start);
  auto* aligned = static_cast<uint8_t*>(start) + (RoundUp(address, kHugePage) - address);
  // The unused ends too, so that neighbouring mappings are one to the system, which limits their
  // number. Without huge pages reading is slower, no more.
  (void)madvise(start, mapped, MADV_HUGEPAGE);
  return {aligned, [start, mapped](uint8_t*) { munmap(start, mapped); }};
}

}  // namespace kvmesh::shard
