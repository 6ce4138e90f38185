// Compiled for AVX2 and FMA.
#include "services/shard/engine/kernels/peaks.h"
#include "services/shard/engine/kernels/simd_avx2.inc"

#define KVMESH_PEAKS kPeaksAvx2
#include "services/shard/engine/kernels/peaks_body.inc"
