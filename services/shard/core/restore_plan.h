// Which layers a hop reads from which slab. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/base/layer_range.h"
#include "common/forward/frames.h"
#include "services/shard/core/checkpoint.h"

namespace kvmesh::shard {

// Each layer of `own` from the first slab that has it, whatever split wrote the slabs; slabs that
// nothing is read from are left out. InvalidArgument: some layer is in none of them.
absl::StatusOr<std::vector<SlabRead>> PlanReads(const forward::HopRestore& restore, LayerRange own);

}  // namespace kvmesh::shard
