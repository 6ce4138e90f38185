#include "services/shard/engine/kernels/peaks.h"

namespace kvmesh::shard {

const Peaks& PeaksOf(InstructionSet set) {
  switch (set) {
    case InstructionSet::kAvx2:
      return kPeaksAvx2;
    case InstructionSet::kAvx512:
      return kPeaksAvx512;
    case InstructionSet::kAvx512Vnni:
      break;
  }
  return kPeaksAvx512Vnni;
}

}  // namespace kvmesh::shard
