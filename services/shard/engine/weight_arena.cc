#include "services/shard/engine/weight_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace kvmesh::shard {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunk = size_t{64} << 20;  // address space, not memory

size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// `bytes`, a multiple of kHugePage, from a multiple of kHugePage on; null if there is no room.
std::shared_ptr<uint8_t> MapHugePages(size_t bytes) {
  const size_t mapped = bytes + kHugePage;
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(start);
  auto* aligned = static_cast<uint8_t*>(start) + (RoundUp(address, kHugePage) - address);
  // Without huge pages reading is slower, no more.
  (void)madvise(aligned, bytes, MADV_HUGEPAGE);
  return {aligned, [start, mapped](uint8_t*) { munmap(start, mapped); }};
}

}  // namespace

absl::StatusOr<std::shared_ptr<uint8_t>> WeightArena::Allocate(size_t bytes) {
  const size_t wanted = RoundUp(std::max<size_t>(bytes, 1), kAlignment);
  if (wanted < bytes || wanted > SIZE_MAX / 2) {
    return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes of packed weights"));
  }
  if (size_ - used_ < wanted) {
    const size_t chunk = RoundUp(std::max(wanted, kChunk), kHugePage);
    std::shared_ptr<uint8_t> mapped = MapHugePages(chunk);
    if (mapped == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for ", chunk, " bytes of packed weights: ", strerror(errno)));
    }
    chunk_ = std::move(mapped);
    size_ = chunk;
    used_ = 0;
  }
  std::shared_ptr<uint8_t> block(chunk_, chunk_.get() + used_);
  used_ += wanted;
  return block;
}

}  // namespace kvmesh::shard
