// Weights as the model file stores them, widened to f32 a row at a time as they are used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/model/weights.h"

namespace kvmesh::shard {

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

}  // namespace kvmesh::shard
