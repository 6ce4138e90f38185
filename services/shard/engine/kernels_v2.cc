#include <cstddef>
#include <cstdint>

#include "services/shard/engine/kernels.h"

#define KVMESH_KERNELS kKernelsV2
#include "services/shard/engine/kernels_body.inc"
