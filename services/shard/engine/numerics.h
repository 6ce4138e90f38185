// The numerics of a shard: order and rounding of all its arithmetic, named by an id. Sets of
// instructions that give the same bits share an id; members of a route agree on it. Immutable
// values.
//
//   round16  the default. Products with quantised weights see activations rounded to 16 bits in
//            blocks, those of the weights (activations.h): a quarter of the multiply-adds, and sums
//            of a block without rounding. All else as fma32.
//   fma32    Activations stay f32; every sum is a chain of fused multiply-adds.
// The order of every sum is fixed by the absolute index of the feature, whatever the rows, tiles
// and threads (kernels/matmul.h).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/shard/engine/kernels/instruction_set.h"

namespace kvmesh::shard {

struct Numerics {
  std::string id;             // as members of a route compare it
  InstructionSet set;         // that computes it here
  bool rounds_to_16 = false;  // activations, where they meet quantised weights
};

// What this processor computes, the default first: each id once, with the fastest set of
// instructions for it. Empty on a processor without AVX2 and FMA.
std::vector<Numerics> NumericsOfThisMachine(const CpuFeatures& cpu = FeaturesOfThisCpu());

// `name`: an id, or ID:SET to force a set of instructions, as "fma32:avx2"; "" is the default.
// InvalidArgument: no such id or set; the known ones are listed. FailedPrecondition: this processor
// lacks the instructions; they are named.
absl::StatusOr<Numerics> NumericsNamed(absl::string_view name,
                                       const CpuFeatures& cpu = FeaturesOfThisCpu());

}  // namespace kvmesh::shard
