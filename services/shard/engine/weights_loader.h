// Packs the weights of a shard, part by part (a layer, the embedding, the head), and keeps them
// packed in a folder if one is given. Not thread-safe.
#pragma once

#include <cstdint>
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
  model::Tensor tensor;        // bytes of a model::MappedFile
  uint32_t rope_head_dim = 0;  // as in PackedMatrix::Pack
};

class WeightsLoader {
 public:
  // `pool` must outlive the loader. `cache_folder`: "" for none; made if it is not there.
  WeightsLoader(ComputePool& pool, Numerics numerics, std::string cache_folder);

  // The packed matrices of one part, in the order of `sources`. `digest` is that of the part
  // (model::ModelDigests). With a folder: mapped from the file that is named by digest and numerics
  // id, if there is one, whole and of the same types and shapes; else packed and written there. A
  // file that cannot be read, is torn or foreign, or cannot be written is told by a line of the log
  // and costs the packing only. Pages of the source are let go as soon as they are packed.
  // Errors of PackedMatrix::Pack.
  absl::StatusOr<std::vector<PackedMatrix>> Load(const Sha256Digest& digest,
                                                 absl::Span<const MatrixSource> sources);

 private:
  ComputePool& pool_;
  Numerics numerics_;
  std::string cache_folder_;
  WeightArena arena_;
};

}  // namespace kvmesh::shard
