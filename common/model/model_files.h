// The files of a model, opened: mapped weights, configuration, and what the tokenizer is made from.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/config.h"
#include "common/model/mapped_file.h"
#include "common/model/tensor_layout.h"

namespace kvmesh::model {

// Tensors point into the mappings beside them.
struct WeightFiles {
  std::vector<std::unique_ptr<MappedFile>> maps;
  std::vector<StoredTensor> tensors;
};

// The files that an index (model.safetensors.index.json) names, in its own folder; other files
// there are ignored. Codes as of Model::Open.
absl::StatusOr<WeightFiles> OpenSafetensorsIndex(const std::string& index_path);
absl::StatusOr<WeightFiles> OpenSafetensorsFile(const std::string& path);

struct ModelFiles {
  WeightFiles weights;
  ModelConfig config;
  TensorNaming naming = TensorNaming::kHuggingFace;
  // What the tokenizer and chat template are made from, by name and in order: files of the folder,
  // or metadata keys with their type.
  std::vector<std::pair<std::string, absl::Span<const uint8_t>>> tokenizer_parts;
  std::vector<std::unique_ptr<MappedFile>> tokenizer_maps;
};

// Codes as of Model::Open; the path is named.
absl::StatusOr<ModelFiles> OpenModelFiles(const std::string& path);

}  // namespace kvmesh::model
