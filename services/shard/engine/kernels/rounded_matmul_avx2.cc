// Compiled for AVX2, FMA and F16C.
#include <cstddef>
#include <cstdint>

#include "services/shard/engine/kernels/matmul.h"
#include "services/shard/engine/kernels/simd_avx2.inc"

namespace kvmesh::shard {
namespace {

// At most 12 sums of the 16 registers.
constexpr size_t kTileRows = 6;
constexpr size_t kDirectTilesMax = 4;
constexpr size_t VectorsTogether(size_t rows) {
  return rows == 1 ? 4 : rows <= 6 ? 2 : 1;
}

}  // namespace
}  // namespace kvmesh::shard

#define KVMESH_MATMUL_KERNELS kRoundedMatmulAvx2
#include "services/shard/engine/kernels/rounded_matmul_body.inc"
