// The safetensors container and the index of a model that is spread over several such files. Pure:
// bytes in, views out. Source: the safetensors format description; stricter than the reference
// package where the format is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/weights.h"

namespace kvmesh::model {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;               // as in the file: "F32"
  std::optional<WeightType> type;  // absent: a type of the format that holds no supported weights
  std::vector<uint64_t> shape;
  absl::Span<const uint8_t> data;
};

// The tensors of one file, whose bytes must outlive them.
// InvalidArgument: malformed (tensor and reason are named).
absl::StatusOr<std::vector<SafetensorsTensor>> ParseSafetensors(absl::Span<const uint8_t> file);

// The weight_map of an index: tensor name to file name. Every file name is a plain name in the
// index's own folder. InvalidArgument: malformed.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(absl::string_view json);

}  // namespace kvmesh::model
