// Compiled for AVX2 and FMA.
#include "services/shard/engine/kernels/simd_avx2.inc"
#include "tests/bench/engine/peaks.h"

#define KVMESH_PEAKS kPeaksAvx2
#include "tests/bench/engine/peaks_body.inc"
