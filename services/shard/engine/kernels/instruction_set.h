// The sets of x86-64 instructions that kernels are compiled for, and which of them a processor
// runs.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvmesh::shard {

// Slowest first.
enum class InstructionSet {
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL, besides
  kAvx512Vnni,  // AVX-512 VNNI, besides
};

inline constexpr InstructionSet kInstructionSets[] = {
    InstructionSet::kAvx2, InstructionSet::kAvx512, InstructionSet::kAvx512Vnni};

// What kernels ask of a processor and of the system that saves its registers.
struct CpuFeatures {
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512dq = false;
  bool avx512vl = false;
  bool avx512_vnni = false;
};
CpuFeatures FeaturesOfThisCpu();

absl::string_view NameOf(InstructionSet set);  // "avx2", "avx512", "avx512vnni"

// The features of `set` that are missing, as Linux names them; none: the set runs.
std::vector<std::string> MissingFeatures(InstructionSet set,
                                         const CpuFeatures& cpu = FeaturesOfThisCpu());

}  // namespace kvmesh::shard
