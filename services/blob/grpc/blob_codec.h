// Protos of the blob service from and to the store's types. Every value from outside is checked
// here. InvalidArgument names the field, its value and the limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kvmesh/v1/blob.pb.h"
#include "services/blob/tiers/slab_store.h"

namespace kvmesh::blob {

absl::StatusOr<SlabName> DecodeName(const v1::SlabId& id);
absl::StatusOr<PutHeader> DecodePutHeader(const v1::PutHeader& header);
absl::StatusOr<Selection> DecodeSelection(const v1::GetRequest& request);

struct Page {
  size_t size = 0;
  std::optional<SlabName> after;
};
absl::StatusOr<Page> DecodePage(const v1::ListRequest& request);

v1::SlabId EncodeName(const SlabName& name);
v1::SlabInfo EncodeInfo(const SlabInfo& info, uint64_t now_s);
v1::GetHeader EncodeGetHeader(const OpenGet& get);

}  // namespace kvmesh::blob
