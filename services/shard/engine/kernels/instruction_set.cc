#include "services/shard/engine/kernels/instruction_set.h"

#include "services/shard/engine/kernels/matmul.h"

namespace kvmesh::shard {

CpuFeatures FeaturesOfThisCpu() {
  CpuFeatures cpu;
#if defined(__x86_64__)
  cpu.avx2 = __builtin_cpu_supports("avx2");
  cpu.fma = __builtin_cpu_supports("fma");
  cpu.f16c = __builtin_cpu_supports("f16c");
  cpu.avx512f = __builtin_cpu_supports("avx512f");
  cpu.avx512bw = __builtin_cpu_supports("avx512bw");
  cpu.avx512dq = __builtin_cpu_supports("avx512dq");
  cpu.avx512vl = __builtin_cpu_supports("avx512vl");
  cpu.avx512_vnni = __builtin_cpu_supports("avx512vnni");
#endif
  return cpu;
}

absl::string_view NameOf(InstructionSet set) {
  switch (set) {
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
    case InstructionSet::kAvx512Vnni:
      return "avx512vnni";
  }
  return "";
}

std::vector<std::string> MissingFeatures(InstructionSet set, const CpuFeatures& cpu) {
  std::vector<std::string> missing;
  const auto need = [&missing](bool has, const char* name) {
    if (!has) missing.emplace_back(name);
  };
  need(cpu.avx2, "avx2");
  need(cpu.fma, "fma");
  need(cpu.f16c, "f16c");
  if (set >= InstructionSet::kAvx512) {
    need(cpu.avx512f, "avx512f");
    need(cpu.avx512bw, "avx512bw");
    need(cpu.avx512dq, "avx512dq");
    need(cpu.avx512vl, "avx512vl");
  }
  if (set == InstructionSet::kAvx512Vnni) need(cpu.avx512_vnni, "avx512_vnni");
  return missing;
}

const MatmulKernels& MatmulKernelsOf(InstructionSet set) {
  return set == InstructionSet::kAvx2 ? kMatmulAvx2 : kMatmulAvx512;
}

const MatmulKernels& RoundedMatmulKernelsOf(InstructionSet set) {
  switch (set) {
    case InstructionSet::kAvx2:
      return kRoundedMatmulAvx2;
    case InstructionSet::kAvx512:
      return kRoundedMatmulAvx512;
    case InstructionSet::kAvx512Vnni:
      break;
  }
  return kRoundedMatmulAvx512Vnni;
}

}  // namespace kvmesh::shard
