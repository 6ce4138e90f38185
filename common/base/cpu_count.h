// How many processors this process may really use: its affinity mask, and the quota of its cgroup.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace kvmesh {

// At least 1. Threads beyond this number take turns instead of running at once.
uint32_t UsableCpuCount();

// The quota in "<quota> <period>" (cgroup v2's cpu.max), rounded up; nothing for "max" and for what
// is not such a line.
std::optional<uint32_t> CpuQuota(absl::string_view cpu_max);

}  // namespace kvmesh
