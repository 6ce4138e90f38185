// Compiled for AVX-512 (F, BW, DQ, VL, VNNI).
#include "services/shard/engine/kernels/simd_avx512.inc"
#include "tests/bench/engine/peaks.h"

#define KVMESH_PEAKS kPeaksAvx512Vnni
#include "tests/bench/engine/peaks_body.inc"
