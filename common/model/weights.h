// Weight types: how numbers lie in a file, and how to widen them. Sources: the GGUF specification
// and ggml's block layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace kvmesh::model {

enum class WeightType {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
};

inline constexpr size_t kWeightTypeCount = static_cast<size_t>(WeightType::kIQ4_XS) + 1;

struct WeightTypeInfo {
  absl::string_view name;  // lower case: "q4_k"
  uint32_t block_size;     // elements
  uint32_t block_bytes;
};
const WeightTypeInfo& InfoOf(WeightType type);

// Widens one run of `out.size()` elements (a multiple of the block size) that starts at `src`.
// `src` holds exactly out.size() / block_size * block_bytes bytes (a CHECK: callers own the sizes).
// Bit-exact with ggml's dequantize_row_* up to one float32 rounding.
void Dequantize(WeightType type, absl::Span<const uint8_t> src, absl::Span<float> out);

// A read-only view of one tensor of a mapped file; lives as long as its Model.
struct Tensor {
  std::string name;  // as in the file
  WeightType type = WeightType::kF32;
  std::vector<uint64_t> shape;  // outermost first: a weight is [out_features, in_features]
  absl::Span<const uint8_t> data;
  // GGUF `llama` q/k: within each head, stored row 2i is original row i and 2i+1 is original row i
  // + head_dim/2.
  bool rope_interleaved = false;

  uint64_t row_bytes() const;  // bytes of one run along the innermost dimension
};

}  // namespace kvmesh::model
