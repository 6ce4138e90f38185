// Packs the weights of a shard, part by part (a layer, the embedding, the head), and keeps them
// packed in a folder if one is given. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/weights.h"
#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/numerics.h"
#include "services/shard/engine/packed_matrix.h"
#include "services/shard/engine/weight_arena.h"

namespace kvmesh::shard {

struct MatrixSource {
  model::Tensor tensor;
  uint32_t rope_head_dim = 0;  // as in PackedMatrix::Pack
};

struct WeightsLoaderOptions {
  std::string cache_folder;  // "": none. Made if it is not there
  // Told, in a sentence, what costs the packing anew though a folder is given.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
  // Told of each tensor that has been packed, whose bytes are not read again.
  std::function<void(const model::Tensor&)> packed = [](const model::Tensor&) {};
};

class WeightsLoader {
 public:
  // `pool` must outlive the loader.
  WeightsLoader(ComputePool& pool, Numerics numerics, WeightsLoaderOptions options);

  // The packed matrices of one part, in the order of `sources`. `digest`: of the part
  // (model::ModelDigests). With a folder: read from the file named after digest and numerics id
  // (weights_file.h) if it is there, whole, and of these types and shapes; else packed and written
  // there.
  // Errors of PackedMatrix::Pack; nothing about the folder is an error.
  absl::StatusOr<std::vector<PackedMatrix>> Load(const Sha256Digest& digest,
                                                 absl::Span<const MatrixSource> sources);

 private:
  absl::StatusOr<std::vector<PackedMatrix>> Pack(absl::Span<const MatrixSource> sources);

  ComputePool& pool_;
  Numerics numerics_;
  WeightsLoaderOptions options_;
  WeightArena arena_;
};

}  // namespace kvmesh::shard
