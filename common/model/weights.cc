#include "common/model/weights.h"

#include <array>
#include <cstddef>

namespace kvmesh::model {

const WeightTypeInfo& InfoOf(WeightType type) {
  static constexpr std::array<WeightTypeInfo, kWeightTypeCount> kInfos = {{
      {"f32", 1, 4},
      {"f16", 1, 2},
      {"bf16", 1, 2},
      {"q8_0", 32, 34},
      {"q4_0", 32, 18},
      {"q4_1", 32, 20},
      {"q5_0", 32, 22},
      {"q5_1", 32, 24},
      {"q2_k", 256, 84},
      {"q3_k", 256, 110},
      {"q4_k", 256, 144},
      {"q5_k", 256, 176},
      {"q6_k", 256, 210},
      {"iq4_nl", 32, 18},
      {"iq4_xs", 256, 136},
  }};
  return kInfos[static_cast<size_t>(type)];
}

uint64_t Tensor::row_bytes() const {
  const WeightTypeInfo& info = InfoOf(type);
  return shape.empty() ? info.block_bytes : shape.back() / info.block_size * info.block_bytes;
}

}  // namespace kvmesh::model
