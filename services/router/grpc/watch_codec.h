// What a shard says of itself on its Watch stream, checked.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kvmesh/v1/shard.pb.h"
#include "services/router/core/route_planner.h"

namespace kvmesh::router {

// InvalidArgument names the field.
absl::StatusOr<ShardFacts> DecodeWatch(const std::string& address, const v1::WatchResponse& proto);

}  // namespace kvmesh::router
