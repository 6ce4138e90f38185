// Weights as the model file stores them, and their products with rows. A weight is widened to f32
// as it is used, a row or a tile of rows at a time into per-thread scratch, and never kept widened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/model/weights.h"
#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/kernels.h"

namespace kvmesh::shard {

// What products need beside the numbers: threads, and for each of them room to widen weights. Not
// thread-safe.
struct ComputeContext {
  ComputePool& pool;
  const Kernels& kernels;
  std::vector<std::vector<float>> widened;  // [threads], each grows to the largest tile used

  explicit ComputeContext(ComputePool& compute_pool)
      : pool(compute_pool), kernels(CpuKernels()), widened(compute_pool.threads()) {}
};

// [rows, columns] = [out_features, in_features], read where the model has it mapped. Immutable;
// thread-safe.
class WeightMatrix {
 public:
  WeightMatrix() = default;
  // `tensor` has two dimensions; its model must outlive the matrix. `head_dim`: of q and k, for
  // their order of rows.
  WeightMatrix(const model::Tensor& tensor, uint32_t head_dim);

  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }

  // out: [columns]. Rows are numbered in half-layout order, whatever the order in the file.
  void WidenRow(size_t row, float* out) const;

 private:
  size_t StoredRow(size_t row) const;

  model::WeightType type_ = model::WeightType::kF32;
  size_t rows_ = 0;
  size_t columns_ = 0;
  size_t row_bytes_ = 0;
  size_t interleaved_head_ =
      0;  // head_dim where the file interleaves the halves of a head's rows; else 0
  const uint8_t* data_ = nullptr;
};

struct Product {
  const WeightMatrix* matrix;
  float* out;  // [x rows, matrix->rows()]
};

// out = x W^T for several matrices that share x: [rows, columns]. May throw std::exception.
// Few rows: one dot product per number; many: tiles of widened weights through oneDNN. Each number
// depends on its row of x, on its weights and on which of the two it is, but not on threads.
void Multiply(ComputeContext& context, const float* x, size_t rows,
              absl::Span<const Product> products);

}  // namespace kvmesh::shard
