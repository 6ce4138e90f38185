// Compiled for AVX-512 (F, BW, DQ, VL, VNNI).
#include "services/shard/engine/kernels/peaks.h"
#include "services/shard/engine/kernels/simd_avx512.inc"

#define KVMESH_PEAKS kPeaksAvx512Vnni
#include "services/shard/engine/kernels/peaks_body.inc"
