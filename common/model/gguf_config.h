// ModelConfig from the metadata of a GGUF file. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "common/model/config.h"
#include "common/model/gguf.h"

namespace kvmesh::model {

// InvalidArgument: missing, malformed or contradictory (key or tensor is named).
// Unimplemented: an architecture or feature that is not supported, named.
absl::StatusOr<ModelConfig> ConfigFromGguf(const GgufFile& file);

}  // namespace kvmesh::model
