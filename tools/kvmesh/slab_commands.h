// The commands below `slab`.
#pragma once

#include "tools/kvmesh/command.h"

namespace kvmesh::cli {

void AddSlabInspect(CLI::App& slab, Action* chosen);
void AddSlabLs(CLI::App& slab, Action* chosen);

}  // namespace kvmesh::cli
