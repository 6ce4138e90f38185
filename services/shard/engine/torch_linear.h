// Products with weights as the model stores them, by libtorch: tiles of weights are widened to f32
// and multiplied by oneDNN, or by the device.
//
// On the processor through oneDNN and not through at::linear: that one calls whichever
// libblas.so.3 is installed, which may be the reference one, or an OpenBLAS that does not know the
// processor (docs/adr/0004-products-by-onednn.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/weight_matrix.h"

namespace kvmesh::shard {

// Keeps libtorch and its libraries on the calling thread: no OpenMP team, no BLAS threads. Once in
// each thread that computes.
void UseTorchOnThisThreadOnly();

// a b^T for f32 tensors [rows, columns] and [outputs, columns] on one device.
at::Tensor MultiplyTransposed(const at::Tensor& a, const at::Tensor& b);

// x W^T, [rows, outputs], for x [rows, columns] in f32 on any device; tiles of W are tasks of
// `pool`, whose threads have called UseTorchOnThisThreadOnly. May throw std::exception.
at::Tensor Linear(ComputePool& pool, const at::Tensor& x, const WeightMatrix& weights);

}  // namespace kvmesh::shard
