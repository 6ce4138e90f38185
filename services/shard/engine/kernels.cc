#include "services/shard/engine/kernels.h"

namespace kvmesh::shard {

const Kernels* KernelsOfLevel(int level) {
  if (level == 2) return &kKernelsV2;
#if defined(__x86_64__)
  if (level == 3 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return &kKernelsV3;
  }
  if (level == 4 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return &kKernelsV4;
  }
#endif
  return nullptr;
}

const Kernels& CpuKernels() {
  static const Kernels& chosen = []() -> const Kernels& {
    for (int level = 4; level > 2; --level) {
      if (const Kernels* kernels = KernelsOfLevel(level)) return *kernels;
    }
    return kKernelsV2;
  }();
  return chosen;
}

}  // namespace kvmesh::shard
