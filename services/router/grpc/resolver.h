// Names to addresses.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvmesh::router {

// All addresses of "host:port" as literal ones ("10.0.0.7:5000", "[::1]:5000"), sorted; "unix:PATH"
// is its own. Blocks as long as the system's resolver does. InvalidArgument: not of the form
// host:port. Unavailable: the resolver's reason.
absl::StatusOr<std::vector<std::string>> Resolve(const std::string& name);

}  // namespace kvmesh::router
