// Which tensors a model must have, under which name and shape, and the search for them among those
// of its files. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/config.h"
#include "common/model/model.h"
#include "common/model/weights.h"

namespace kvmesh::model {

enum class TensorNaming { kHuggingFace, kGguf };

// One tensor of a container.
struct StoredTensor {
  std::string name;
  std::optional<WeightType> type;  // absent: not supported as weights
  std::string type_name;           // for messages
  std::vector<uint64_t> shape;     // outermost first
  absl::Span<const uint8_t> data;
};

struct RoleTensor {
  WeightRole role;
  Tensor tensor;
};

// Where a role occurs once for each layer.
bool IsLayerRole(WeightRole role);

struct ModelTensors {
  std::vector<RoleTensor> global;               // embedding, output norm, output unless tied
  std::vector<std::vector<RoleTensor>> layers;  // [layer_count], each in the order of WeightRole
};

// InvalidArgument: a tensor is missing, has another shape than `config` asks for, or has no place
// in the model. Unimplemented: a tensor of a type that is not supported. The tensor is named.
absl::StatusOr<ModelTensors> ResolveTensors(const ModelConfig& config, TensorNaming naming,
                                            const std::vector<StoredTensor>& stored);

}  // namespace kvmesh::model
