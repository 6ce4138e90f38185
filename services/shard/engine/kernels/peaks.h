// What the processor can do at most, measured beside the kernels: their bounds. The processor must
// have the set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "services/shard/engine/kernels/instruction_set.h"

namespace kvmesh::shard {

struct Peaks {
  // `rounds` times twelve instructions that wait for nothing but one another's unit, on registers;
  // the value returned depends on all of them.
  float (*multiply_add)(size_t rounds);  // fused, of floats
  float (*dot_words)(size_t rounds);     // of pairs of 16-bit numbers, added to 32-bit ones
  size_t multiply_add_operations;        // of one round
  size_t dot_words_operations;
  // Reads `bytes`, a multiple of 256, from `data`, aligned to 64.
  uint64_t (*read)(const uint8_t* data, size_t bytes);
};

const Peaks& PeaksOf(InstructionSet set);

extern const Peaks kPeaksAvx2;
extern const Peaks kPeaksAvx512;
extern const Peaks kPeaksAvx512Vnni;

}  // namespace kvmesh::shard
