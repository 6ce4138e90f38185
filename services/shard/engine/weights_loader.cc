#include "services/shard/engine/weights_loader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/shard/engine/weights_file.h"

namespace kvmesh::shard {

WeightsLoader::WeightsLoader(ComputePool& pool, Numerics numerics, WeightsLoaderOptions options)
    : pool_(pool), numerics_(std::move(numerics)), options_(std::move(options)) {}

absl::StatusOr<std::vector<PackedMatrix>> WeightsLoader::Load(
    const Sha256Digest& digest, absl::Span<const MatrixSource> sources) {
  if (options_.cache_folder.empty()) return Pack(sources);

  WeightsFileKey key = {.digest = digest, .numerics_id = numerics_.id};
  key.matrices.reserve(sources.size());
  for (const MatrixSource& source : sources) {
    if (source.tensor.shape.size() != 2) return Pack(sources);  // which refuses it
    key.matrices.push_back(
        {.type = source.tensor.type,
         .rows = source.tensor.shape[0],
         .columns = source.tensor.shape[1],
         .rope_head_dim = source.tensor.rope_interleaved ? source.rope_head_dim : 0});
  }
  const std::string path = WeightsFilePath(options_.cache_folder, key);
  absl::StatusOr<std::vector<PackedMatrix>> cached = ReadWeightsFile(path, key, pool_, arena_);
  if (cached.ok()) return cached;
  if (!absl::IsNotFound(cached.status())) {
    options_.warn(absl::StrCat("cached weights are not used: ", cached.status().message()));
  }
  KVMESH_ASSIGN_OR_RETURN(std::vector<PackedMatrix> packed, Pack(sources));
  const absl::Status written = WriteWeightsFile(path, key, packed);
  if (!written.ok()) {
    options_.warn(absl::StrCat("packed weights are not kept: ", written.message()));
  }
  return packed;
}

absl::StatusOr<std::vector<PackedMatrix>> WeightsLoader::Pack(
    absl::Span<const MatrixSource> sources) {
  std::vector<PackedMatrix> packed;
  packed.reserve(sources.size());
  for (const MatrixSource& source : sources) {
    KVMESH_ASSIGN_OR_RETURN(
        PackedMatrix matrix,
        PackedMatrix::Pack(pool_, arena_, source.tensor, source.rope_head_dim, numerics_));
    options_.packed(source.tensor);
    packed.push_back(std::move(matrix));
  }
  return packed;
}

}  // namespace kvmesh::shard
