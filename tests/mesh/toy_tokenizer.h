// The router's copy of the toy model.
#pragma once

#include "services/router/grpc/router_model.h"

namespace kvmesh::testing {

router::RouterModel ToyRouterModel(uint32_t layer_count, uint32_t context_length);

}  // namespace kvmesh::testing
