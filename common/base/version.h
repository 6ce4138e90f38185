// The release this code belongs to.
#pragma once

namespace kvmesh {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace kvmesh
