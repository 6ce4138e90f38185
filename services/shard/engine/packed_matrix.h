// Weights in the order in which products read them: panels of 32 outputs, features outermost, at
// the size of the model's own type. Packed once at load; nothing is lost, so a row widens to the
// bits that the model's own row widens to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/weights.h"
#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/numerics.h"
#include "services/shard/engine/weight_arena.h"

namespace kvmesh::shard {

// [rows, columns] = [out_features, in_features]. Immutable; thread-safe; copies share the weights.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  // On all threads of `pool`. `tensor` has two dimensions and may be let go afterwards.
  // `rope_head_dim`: of q and k, whose rows GGUF interleaves (model::Tensor::rope_interleaved): the
  // rows of the result are in half-layout order; otherwise 0.
  // InvalidArgument: not two dimensions, a dimension of 0, rows that are no whole heads; the tensor
  // is named. ResourceExhausted: no memory.
  static absl::StatusOr<PackedMatrix> Pack(ComputePool& pool, WeightArena& arena,
                                           const model::Tensor& tensor, uint32_t rope_head_dim,
                                           const Numerics& numerics);

  // A view of weights that Pack has laid out before, for the same type and shape; `packed` holds
  // PackedBytes(type, rows, columns) bytes and begins at a multiple of WeightArena::kAlignment.
  static PackedMatrix FromPacked(model::WeightType type, size_t rows, size_t columns,
                                 std::shared_ptr<const uint8_t> packed);
  static size_t PackedBytes(model::WeightType type, size_t rows, size_t columns);

  model::WeightType type() const { return type_; }
  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  uint64_t bytes() const { return PackedBytes(type_, rows_, columns_); }
  const uint8_t* packed() const { return packed_.get(); }

  // out: [columns], the bits that model::Dequantize gives.
  void WidenRow(size_t row, float* out) const;

 private:
  model::WeightType type_ = model::WeightType::kF32;
  size_t rows_ = 0;
  size_t columns_ = 0;
  std::shared_ptr<const uint8_t> packed_;
};

}  // namespace kvmesh::shard
