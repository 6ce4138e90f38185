// Compiled for AVX-512 (F, BW, DQ, VL).
#include <cstddef>
#include <cstdint>

#include "services/shard/engine/kernels/matmul.h"
#include "services/shard/engine/kernels/simd_avx512.inc"

namespace kvmesh::shard {
namespace {

// 24 sums, and registers to spare for weights and x.
constexpr size_t kTileRows = 12;
constexpr size_t kDirectTilesMax = 16;
constexpr size_t VectorsTogether(size_t rows) {
  return 2;
}

}  // namespace
}  // namespace kvmesh::shard

#define KVMESH_MATMUL_KERNELS kMatmulAvx512
#include "services/shard/engine/kernels/matmul_body.inc"
