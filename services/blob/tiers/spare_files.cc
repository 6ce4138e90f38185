#include "services/blob/tiers/spare_files.h"

#include <iterator>
#include <utility>
#include <vector>

#include "common/slab/format.h"

namespace kvmesh::blob {
namespace {

constexpr uint64_t kBytesMin = 1 << 20;
constexpr size_t kFilesMax = 64;

}  // namespace

void SpareFiles::Keep(SpareFile spare) {
  if (spare.bytes < kBytesMin) return Unlink(std::move(spare));
  std::optional<SpareFile> smallest;
  {
    MutexLock lock(&mutex_);
    bytes_ += slab::AlignUp(spare.bytes);
    const uint64_t bytes = spare.bytes;
    spares_.emplace(bytes, std::move(spare));
    if (spares_.size() > kFilesMax) smallest = Remove(spares_.begin());
  }
  if (smallest) Unlink(*std::move(smallest));
}

std::optional<SpareFile> SpareFiles::Take(uint64_t bytes) {
  MutexLock lock(&mutex_);
  const auto found = spares_.lower_bound(bytes);
  if (found != spares_.end() && found->first / 2 <= bytes) return Remove(found);
  if (found == spares_.begin()) return std::nullopt;
  return Remove(std::prev(found));
}

void SpareFiles::Limit(uint64_t bytes_max) {
  std::vector<SpareFile> victims;
  {
    MutexLock lock(&mutex_);
    while (bytes_ > bytes_max) victims.push_back(Remove(spares_.begin()));
  }
  for (SpareFile& victim : victims) Unlink(std::move(victim));
}

uint64_t SpareFiles::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

SpareFile SpareFiles::Remove(BySize::iterator at) {
  SpareFile spare = std::move(at->second);
  spares_.erase(at);
  bytes_ -= slab::AlignUp(spare.bytes);
  return spare;
}

// A name that stays is removed at the next start.
void SpareFiles::Unlink(SpareFile spare) {
  files_.Unlink(spare.path).IgnoreError();
}

}  // namespace kvmesh::blob
