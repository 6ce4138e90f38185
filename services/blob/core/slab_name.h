// The name of one slab in one store: content key, layer range, write_id. As a file name it is
// "<64 hex digits>.<begin>-<end>.<32 hex digits>", one spelling only, and is never used twice.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "common/slab/format.h"

namespace kvmesh::blob {

struct SlabName {
  Sha256Digest key;
  LayerRange layers;
  WriteId write_id;

  std::string ToFileName() const;
  // InvalidArgument: anything that ToFileName does not write.
  static absl::StatusOr<SlabName> FromFileName(absl::string_view file_name);
  // From the parts that a caller sends. InvalidArgument: not 64 and 32 hex digits, or no layer
  // range; the field is named.
  static absl::StatusOr<SlabName> FromParts(absl::string_view key_hex, LayerRange layers,
                                            absl::string_view write_id_hex);

  friend bool operator==(const SlabName&, const SlabName&) = default;
  friend bool operator<(const SlabName& a, const SlabName& b) {
    return std::tie(a.key, a.layers.begin, a.layers.end, a.write_id) <
           std::tie(b.key, b.layers.begin, b.layers.end, b.write_id);
  }
};

// The name that a slab's own bytes give it.
SlabName NameOf(const slab::SlabMeta& meta);

}  // namespace kvmesh::blob
