#include "services/shard/engine/weight_arena.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/shard/engine/huge_pages.h"

namespace kvmesh::shard {
namespace {

constexpr size_t kChunk = size_t{64} << 20;  // address space, not memory

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
