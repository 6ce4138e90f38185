// What stores say of a slab, to callers and to the arbiter: the one encoder.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "common/slab/format.h"
#include "kvmesh/v1/blob.pb.h"

namespace kvmesh::rpc {

v1::SlabId EncodeSlabId(const Sha256Digest& key, LayerRange layers, const WriteId& write_id);

// What views refer to outlives the call.
struct SlabDescription {
  Sha256Digest key;
  LayerRange layers;
  WriteId write_id;
  const slab::KeyNamespace& key_namespace;
  uint64_t size_bytes = 0;  // of the file
  uint32_t token_count = 0;
  uint64_t text_bytes = 0;
  Sha256Digest tokens_sha256;
  uint64_t block_hash = 0;
  uint32_t tail_hash = 0;
  absl::Span<const slab::CutPoint> cut_points;  // the inner ones
  slab::SaveReason reason = slab::SaveReason::kCold;
};

// All but age, idle time, hits and the payload's CRC, which only who has the bytes knows.
v1::SlabInfo EncodeSlab(const SlabDescription& slab);

}  // namespace kvmesh::rpc
