// The part of an Open that names stored state, between proto and plain values.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/forward/frames.h"
#include "kvmesh/v1/shard.pb.h"

namespace kvmesh::rpc {

// InvalidArgument: a hop named twice, more than limits::kHopsMax hops or slabs, a malformed id,
// range or address, tokens out of range; field, value and limit are named.
absl::StatusOr<std::vector<forward::HopRestore>> DecodeRestores(const v1::Open& proto);

void EncodeRestores(const std::vector<forward::HopRestore>& restores, v1::Open* proto);

}  // namespace kvmesh::rpc
