// ModelConfig from the config.json and generation_config.json of a Hugging Face directory, in the
// key style of transformers 5 and in the older one. Pure.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/config.h"

namespace kvmesh::model {

// tied_embedding is what the flag says; whether the files hold an output matrix is the caller's to
// see. InvalidArgument: malformed, missing or contradictory (file and key are named).
// Unimplemented: an architecture, activation, rope scaling, layer kind or quantisation that is not
// supported, named.
absl::StatusOr<ModelConfig> ConfigFromHuggingFace(
    absl::string_view config_json, std::optional<absl::string_view> generation_config_json);

}  // namespace kvmesh::model
