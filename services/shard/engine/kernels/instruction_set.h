// The sets of x86-64 instructions that kernels are compiled for, and which of them run here.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvmesh::shard {

// Slowest first.
enum class InstructionSet {
  kAvx2,    // AVX2, FMA, F16C
  kAvx512,  // AVX-512 F, BW, DQ, VL, besides
};

inline constexpr InstructionSet kInstructionSets[] = {InstructionSet::kAvx2,
                                                      InstructionSet::kAvx512};

absl::string_view NameOf(InstructionSet set);  // "avx2", "avx512"

// The features of `set` that this processor or its system lacks, as Linux names them; none: it
// runs.
std::vector<std::string> MissingFeatures(InstructionSet set);

}  // namespace kvmesh::shard
