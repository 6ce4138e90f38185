#include <cstddef>
#include <cstdint>

#include "services/shard/engine/kernels/lanes.h"
#include "services/shard/engine/kernels/step_kernels.h"

#define KVMESH_STEP_KERNELS kStepKernelsAvx512
#define KVMESH_ACCUMULATORS 24
#include "services/shard/engine/kernels/step_kernels_body.inc"
