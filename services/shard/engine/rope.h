// Rotary position embedding (Su et al., "RoFormer", 2021) in the half layout, with the frequencies
// as transformers computes them: in f32. Angles and their sines are computed in f64. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/model/config.h"

namespace kvmesh::shard {

// [dims / 2], radians per position.
std::vector<float> RopeFrequencies(const model::RopeConfig& rope);

// Cosines, then sines, of one position's angles: [2 * frequencies].
void RopeAngles(const std::vector<float>& frequencies, uint64_t position, float* cos_sin);

// Turns element i with element i + half of each of `heads` heads; elements from 2 * half on stay.
void RotateHeads(const float* cos_sin, size_t half, size_t heads, size_t head_dim, float* x);

}  // namespace kvmesh::shard
