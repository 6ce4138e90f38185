// What a slab says of itself, for people and for scripts.
#pragma once

#include "common/slab/format.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {

Json DescribeSlab(const slab::SlabMeta& meta);
// Header, TLVs and layer table as text on stdout.
void PrintSlab(const slab::SlabMeta& meta);

}  // namespace kvmesh::cli
