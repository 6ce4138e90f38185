#include "services/blob/core/slab_name.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/hex_id.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace kvmesh::blob {

std::string SlabName::ToFileName() const {
  return absl::StrCat(key.ToHex(), ".", layers.begin, "-", layers.end, ".", write_id.ToHex());
}

absl::StatusOr<SlabName> SlabName::FromFileName(absl::string_view file_name) {
  const absl::Status refused = absl::InvalidArgumentError("not the file name of a slab");
  const std::vector<absl::string_view> parts = absl::StrSplit(file_name, '.');
  if (parts.size() != 3) return refused;
  const std::vector<absl::string_view> ends = absl::StrSplit(parts[1], '-');
  LayerRange layers;
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &layers.begin) ||
      !absl::SimpleAtoi(ends[1], &layers.end)) {
    return refused;
  }
  KVMESH_ASSIGN_OR_RETURN(const SlabName name, FromParts(parts[0], layers, parts[2]));
  // Leading zeros, signs, spaces and capitals would be second spellings of one name.
  if (name.ToFileName() != file_name) return refused;
  return name;
}

absl::StatusOr<SlabName> SlabName::FromParts(absl::string_view key_hex, LayerRange layers,
                                             absl::string_view write_id_hex) {
  SlabName name;
  KVMESH_ASSIGN_OR_RETURN(name.key, IdFromHex<Sha256Digest>(key_hex, "slab.key"));
  KVMESH_ASSIGN_OR_RETURN(name.write_id, IdFromHex<WriteId>(write_id_hex, "slab.write_id"));
  if (layers.begin >= layers.end || layers.end > limits::kLayersMax) {
    return absl::InvalidArgumentError(absl::StrCat("slab.layers is ", layers.begin, ":", layers.end,
                                                   "; at most ", limits::kLayersMax, " layers"));
  }
  name.layers = layers;
  return name;
}

SlabName NameOf(const slab::SlabMeta& meta) {
  return {.key = meta.key, .layers = meta.header.layers, .write_id = meta.write_id};
}

}  // namespace kvmesh::blob
