#include "services/shard/engine/weight_matrix.h"

#include <algorithm>

#include "services/shard/engine/torch_gemm.h"

namespace kvmesh::shard {
namespace {

// Up to so many rows, widening a weight row once and dotting it with each is faster than a library
// product.
constexpr size_t kDotRowsMax = 16;
constexpr size_t kDotTaskRows = 32;  // weight rows of one task
constexpr size_t kGemmTaskRows =
    64;  // of a tile: small enough for the second-level cache, and for sharing out

// One task: some rows of one of the products.
struct Part {
  const Product* product;
  size_t begin;
  size_t end;
};

std::vector<Part> SplitIntoParts(absl::Span<const Product> products, size_t part_rows) {
  std::vector<Part> parts;
  for (const Product& product : products) {
    const size_t rows = product.matrix->rows();
    for (size_t begin = 0; begin < rows; begin += part_rows) {
      parts.push_back({&product, begin, std::min(begin + part_rows, rows)});
    }
  }
  return parts;
}

float* RoomFor(std::vector<float>& scratch, size_t count) {
  if (scratch.size() < count) scratch.resize(count);
  return scratch.data();
}

void DotPart(const Kernels& kernels, const Part& part, const float* x, size_t rows,
             std::vector<float>& scratch) {
  const WeightMatrix& matrix = *part.product->matrix;
  float* weights = RoomFor(scratch, matrix.columns());
  for (size_t row = part.begin; row < part.end; ++row) {
    matrix.WidenRow(row, weights);
    kernels.dot_rows(weights, matrix.columns(), x, rows, matrix.columns(), part.product->out + row,
                     matrix.rows());
  }
}

void GemmPart(const Part& part, const GemmRows& x, std::vector<float>& scratch) {
  const WeightMatrix& matrix = *part.product->matrix;
  const size_t count = part.end - part.begin;
  float* weights = RoomFor(scratch, count * matrix.columns());
  for (size_t i = 0; i < count; ++i) {
    matrix.WidenRow(part.begin + i, weights + i * matrix.columns());
  }
  x.Multiply(weights, count, part.product->out + part.begin, matrix.rows());
}

}  // namespace

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

void Multiply(ComputeContext& context, const float* x, size_t rows,
              absl::Span<const Product> products) {
  if (rows <= kDotRowsMax) {
    const std::vector<Part> parts = SplitIntoParts(products, kDotTaskRows);
    context.pool.Run(parts.size(), [&](size_t i, uint32_t worker) {
      DotPart(context.kernels, parts[i], x, rows, context.widened[worker]);
    });
    return;
  }
  const GemmRows gemm_rows(x, rows, products[0].matrix->columns());
  const std::vector<Part> parts = SplitIntoParts(products, kGemmTaskRows);
  context.pool.Run(parts.size(), [&](size_t i, uint32_t worker) {
    GemmPart(parts[i], gemm_rows, context.widened[worker]);
  });
}

}  // namespace kvmesh::shard
