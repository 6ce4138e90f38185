#include "services/shard/engine/kernels/step_kernels.h"

#include "services/shard/engine/kernels/instruction_set.h"

namespace kvmesh::shard {

const StepKernels& StepKernelsOf(InstructionSet set) {
  return set == InstructionSet::kAvx2 ? kStepKernelsAvx2 : kStepKernelsAvx512;
}

}  // namespace kvmesh::shard
