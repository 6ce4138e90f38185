#include "services/shard/engine/weight_matrix.h"

namespace kvmesh::shard {

WeightMatrix::WeightMatrix(const model::Tensor& tensor, uint32_t head_dim)
    : type_(tensor.type),
      rows_(tensor.shape[0]),
      columns_(tensor.shape[1]),
      row_bytes_(tensor.row_bytes()),
      interleaved_head_(tensor.rope_interleaved ? head_dim : 0),
      data_(tensor.data.data()) {}

size_t WeightMatrix::StoredRow(size_t row) const {
  if (interleaved_head_ == 0) return row;
  const size_t in_head = row % interleaved_head_;
  const size_t half = interleaved_head_ / 2;
  return row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
}

void WeightMatrix::WidenRow(size_t row, float* out) const {
  model::Dequantize(type_, {data_ + StoredRow(row) * row_bytes_, row_bytes_}, {out, columns_});
}

}  // namespace kvmesh::shard
