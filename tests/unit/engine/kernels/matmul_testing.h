// Two oracles for products: the exact sum, with a bound on what f32 may be off by, and the order of
// kernels/matmul.h followed one number at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/multiply.h"
#include "tests/unit/engine/kernels/weight_testing.h"

namespace kvmesh::shard {

struct ExactDot {
  double value;
  double bound;  // of the error of a product in the order of kernels/matmul.h
};

// The dot product of a row of weights with x: [columns].
//
// The bound. Let u = 2^-24, gamma(n) = n u / (1 - n u), g the features of a group, m the groups. A
// chain of n fused multiply-adds from zero rounds each of its terms at most n times, so it is
// within gamma(n) of the sum of the absolute values of its terms (N. Higham, Accuracy and Stability
// of Numerical Algorithms, 3.1). A term scale * value * x is rounded in its group, at most g times,
// then at most 2 m times in the total (m times the scaled sum, m times the minimum); scale, value
// and minimum themselves are exact. A term minimum * x is rounded at most 5 times in the sum of x
// (32 numbers, pairwise), then at most 2 m times. Hence the error is at most
//   gamma(g + 2 m + 5) * sum(|scale value x| + |minimum x|).
// Each rounding can also lose half the smallest denormal, 2^-150, which scales of a group enlarge:
//   (columns + 2 m) * 2^-150 * max(1, |scale|).
// With rounded activations a sum of a group is rounded once, as it becomes a float, in place of g
// and 5 times, and x is off by half the scale s of its group, or by s if it was cut:
//   sum(|scale value + minimum| * (s or s / 2)).
ExactDot DotInDouble(const Numerics& numerics, const TestWeights& weights, size_t row,
                     const float* x);

// The order that kernels/matmul.h states, one operation after another.
float DotInOrder(const Numerics& numerics, const TestWeights& weights, size_t row, const float* x);

// x: [rows, columns] times the weights, packed and multiplied: [rows, weights.rows()].
std::vector<float> Multiplied(ComputePool& pool, const Numerics& numerics,
                              const TestWeights& weights, absl::Span<const float> x);

}  // namespace kvmesh::shard
