#include "services/shard/engine/torch_gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cstring>

namespace kvmesh::shard {
namespace {

// A view: oneDNN reads weights and rows only.
at::Tensor View(const float* data, size_t rows, size_t columns) {
  return at::from_blob(const_cast<float*>(data),
                       {static_cast<int64_t>(rows), static_cast<int64_t>(columns)}, at::kFloat);
}

}  // namespace

void UseTorchOnThisThreadOnly() {
  at::set_num_threads(1);
}

struct GemmRows::Impl {
  size_t rows;
  size_t columns;
  at::Tensor x;  // [rows, columns], oneDNN
};

GemmRows::GemmRows(const float* x, size_t rows, size_t columns) {
  const c10::InferenceMode no_autograd;
  impl_ = std::make_unique<Impl>(Impl{rows, columns, View(x, rows, columns).to_mkldnn()});
}

GemmRows::~GemmRows() = default;

void GemmRows::Multiply(const float* weights, size_t count, float* out, size_t out_stride) const {
  const c10::InferenceMode no_autograd;
  const at::Tensor product =
      at::mkldnn_linear(impl_->x, View(weights, count, impl_->columns), {}).to_dense();
  const float* from = product.data_ptr<float>();  // [rows, count], contiguous
  for (size_t row = 0; row < impl_->rows; ++row) {
    std::memcpy(out + row * out_stride, from + row * count, count * sizeof(float));
  }
}

}  // namespace kvmesh::shard
