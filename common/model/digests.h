// Fingerprints of a model's parts (DESIGN §9), with a cache of those that cost reading the weights.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/model/config.h"
#include "common/model/model.h"
#include "common/model/model_files.h"
#include "common/model/tensor_layout.h"

namespace kvmesh::model {

// As Model::Digests. InvalidArgument: `range` is empty or beyond the layers.
absl::StatusOr<ModelDigests> ComputeDigests(const std::string& path, const ModelFiles& files,
                                            const ModelTensors& tensors, LayerRange range);

// Over everything in the configuration that changes a session's state or where a text ends; not
// over the context limit, which changes neither.
Sha256Digest ConfigDigest(const ModelConfig& config);

// Over everything that the tokenizer and the chat template are made from.
Sha256Digest TokenizerDigest(const ModelFiles& files);

}  // namespace kvmesh::model
