#include "services/shard/engine/torch_linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace kvmesh::shard {
namespace {

// Weight rows of a tile: small enough for the second-level cache, and for sharing out.
constexpr size_t kTileOutputs = 64;

at::Tensor WidenedTile(const WeightMatrix& weights, size_t begin, size_t end) {
  const auto shape = {static_cast<int64_t>(end - begin), static_cast<int64_t>(weights.columns())};
  at::Tensor tile = at::empty(shape, at::kFloat);
  for (size_t row = begin; row < end; ++row) {
    weights.WidenRow(row, tile.data_ptr<float>() + (row - begin) * weights.columns());
  }
  return tile;
}

}  // namespace

void UseTorchOnThisThreadOnly() {
  at::set_num_threads(1);
}

at::Tensor MultiplyTransposed(const at::Tensor& a, const at::Tensor& b) {
  if (!a.device().is_cpu()) return at::linear(a, b);
  return at::mkldnn_linear(a.contiguous().to_mkldnn(), b.contiguous(), {}).to_dense();
}

at::Tensor Linear(ComputePool& pool, const at::Tensor& x, const WeightMatrix& weights) {
  const size_t tiles = (weights.rows() + kTileOutputs - 1) / kTileOutputs;
  at::Tensor out = at::empty({x.size(0), static_cast<int64_t>(weights.rows())}, x.options());
  pool.Run(tiles, [&](size_t tile, uint32_t) {
    const c10::InferenceMode no_autograd;
    const size_t begin = tile * kTileOutputs;
    const size_t end = std::min(begin + kTileOutputs, weights.rows());
    const at::Tensor widened = WidenedTile(weights, begin, end).to(x.device());
    out.slice(1, static_cast<int64_t>(begin), static_cast<int64_t>(end))
        .copy_(MultiplyTransposed(x, widened));
  });
  return out;
}

}  // namespace kvmesh::shard
