// Products of rows of activations with packed weights.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/numerics.h"
#include "services/shard/engine/packed_matrix.h"

namespace kvmesh::shard {

// Room that products need besides their operands; grows to the largest product seen and is then
// reused. Belongs to one caller of Multiply at a time.
class MultiplyScratch {
 public:
  MultiplyScratch();
  ~MultiplyScratch();
  MultiplyScratch(MultiplyScratch&&) noexcept;
  MultiplyScratch& operator=(MultiplyScratch&&) noexcept;

  struct Buffers;
  Buffers& buffers() { return *buffers_; }

 private:
  std::unique_ptr<Buffers> buffers_;
};

struct Product {
  const PackedMatrix* weights;
  float* out;  // [rows of x, weights->rows()]
};

// out = x W^T for several matrices that share x: [rows, columns]; at least one product, all of the
// same number of columns. The bits of a row of `out` depend on its row of x, on the weights and on
// the id of the numerics: not on the other rows, on threads, or on the set of instructions. NaN and
// infinities stay in their row. No heap allocation once `scratch` has grown. Up
// to 32 rows, or 128 where registers are many, take weights as they are; for more rows each panel
// is widened first.
void Multiply(ComputePool& pool, MultiplyScratch& scratch, const Numerics& numerics, const float* x,
              size_t rows, absl::Span<const Product> products);

}  // namespace kvmesh::shard
