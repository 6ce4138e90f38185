// Products of many rows, by libtorch's oneDNN. The only file of the engine that includes torch is
// torch_gemm.cc.
//
// Through oneDNN and not through at::matmul: that one calls whichever libblas.so.3 is installed,
// which may be the reference one, or an OpenBLAS that does not know the processor
// (docs/adr/0004-products-by-onednn.md).
#pragma once

#include <cstddef>
#include <memory>

namespace kvmesh::shard {

// Keeps libtorch and its libraries on the calling thread: no OpenMP team, no BLAS threads. Once in
// each thread that multiplies.
void UseTorchOnThisThreadOnly();

// The left side of products: rows in oneDNN's own layout. Immutable after construction;
// thread-safe. Everything may throw std::exception (no memory; an error of the library).
class GemmRows {
 public:
  GemmRows(const float* x, size_t rows, size_t columns);  // x: [rows, columns]; copied
  ~GemmRows();

  // out[r * out_stride + j] = dot(x[r], weights[j]) for j < count; weights: [count, columns].
  void Multiply(const float* weights, size_t count, float* out, size_t out_stride) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvmesh::shard
