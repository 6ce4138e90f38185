// Compiled for AVX-512 (F, BW, DQ, VL).
#include "services/shard/engine/kernels/peaks.h"
#include "services/shard/engine/kernels/simd_avx512.inc"

#define KVMESH_PEAKS kPeaksAvx512
#include "services/shard/engine/kernels/peaks_body.inc"
