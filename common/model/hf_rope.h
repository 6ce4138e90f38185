// Rotary embedding of a config.json: `rope_parameters` of transformers 5, or `rope_theta` and
// `rope_scaling` of older checkpoints, with `rope_type` or its older name `type`. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "common/model/config.h"
#include "common/model/json.h"

namespace kvmesh::model {

// InvalidArgument: malformed or contradictory. Unimplemented: a kind of scaling that is not
// supported, named.
absl::StatusOr<RopeConfig> ReadRope(const JsonObject& config, uint32_t head_dim);

}  // namespace kvmesh::model
