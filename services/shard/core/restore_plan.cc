#include "services/shard/core/restore_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvmesh::shard {

absl::StatusOr<std::vector<SlabRead>> PlanReads(const forward::HopRestore& restore,
                                                LayerRange own) {
  std::vector<SlabRead> reads;
  reads.reserve(restore.slabs.size());
  for (const forward::SlabRef& slab : restore.slabs) reads.push_back({.slab = slab});
  for (uint32_t layer = own.begin; layer < own.end; ++layer) {
    const auto has_it = [layer](const SlabRead& read) {
      return read.slab.layers.begin <= layer && layer < read.slab.layers.end;
    };
    const auto read = std::find_if(reads.begin(), reads.end(), has_it);
    if (read == reads.end()) {
      return absl::InvalidArgumentError(absl::StrCat("restore.slabs do not have layer ", layer,
                                                     " of this shard's ", own.begin, ":", own.end));
    }
    read->layers.push_back(layer);
  }
  const auto unused = [](const SlabRead& read) { return read.layers.empty(); };
  reads.erase(std::remove_if(reads.begin(), reads.end(), unused), reads.end());
  return reads;
}

}  // namespace kvmesh::shard
