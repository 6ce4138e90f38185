// How much memory this process may use.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace kvmesh::shard {

// The tightest of the limit of the process's cgroup (v2 or v1) and the machine's memory, in bytes;
// 0 when unknown.
uint64_t UsableMemoryBytes();

// The number in a cgroup's memory limit file; 0 for "max" and for what is not a number.
uint64_t MemoryLimit(absl::string_view text);

}  // namespace kvmesh::shard
