#include <cstddef>
#include <cstdint>

#include "services/shard/engine/kernels/lanes.h"
#include "services/shard/engine/kernels/step_kernels.h"

#define KVMESH_STEP_KERNELS kStepKernelsAvx2
#define KVMESH_ACCUMULATORS 6
#include "services/shard/engine/kernels/step_kernels_body.inc"
