#include <cstddef>
#include <cstdint>

#include "services/shard/engine/kernels.h"

#define KVMESH_KERNELS kKernelsV3
#include "services/shard/engine/kernels_body.inc"
