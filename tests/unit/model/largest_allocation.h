// The largest block asked for from operator new since the last reset: shows that nothing is
// reserved for sizes that a file only announces.
#pragma once

#include <cstddef>

namespace kvmesh::model {

void ResetLargestAllocation();
size_t LargestAllocation();

}  // namespace kvmesh::model
