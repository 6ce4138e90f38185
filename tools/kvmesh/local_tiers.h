// The storage tiers of a mesh on this machine: where each keeps its slabs and how much of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvmesh::cli {

struct LocalTier {
  std::string tier;    // "ram", "ram_file", "disk"
  std::string folder;  // of its slabs; empty for ram
  uint64_t budget_bytes = 0;
};

// For each of `tiers` a share of what is free, what its own slabs take counted in; the folders are
// the same for the same `data_dir`, so that a mesh started again finds its slabs. A medium with
// hardly any room is left out, with a word on stderr. InvalidArgument: an unknown tier, or one
// named twice. Unavailable: a folder cannot be made.
absl::StatusOr<std::vector<LocalTier>> PlanLocalTiers(const std::vector<std::string>& tiers,
                                                      const std::string& data_dir);

// Where saves go, REASON=TIER[,TIER...] each, as of kvmesh-meta: `settings`, and for every reason
// that they do not name and whose usual tiers are all missing from `tiers` what comes nearest.
std::vector<std::string> LocalTierPolicy(const std::vector<LocalTier>& tiers,
                                         const std::vector<std::string>& settings);

}  // namespace kvmesh::cli
