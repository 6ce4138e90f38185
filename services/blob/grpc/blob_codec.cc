#include "services/blob/grpc/blob_codec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/rpc/slab_codec.h"

namespace kvmesh::blob {
namespace {

constexpr uint32_t kPageDefault = 100;

}  // namespace

absl::StatusOr<SlabName> DecodeName(const v1::SlabId& id) {
  return SlabName::FromParts(id.key(), {.begin = id.layers().begin(), .end = id.layers().end()},
                             id.write_id());
}

absl::StatusOr<PutHeader> DecodePutHeader(const v1::PutHeader& header) {
  PutHeader decoded{.file_bytes = header.size_bytes(), .payload_crc32c = header.payload_crc32c()};
  KVMESH_ASSIGN_OR_RETURN(decoded.name, DecodeName(header.slab()));
  KVMESH_ASSIGN_OR_RETURN(decoded.tokens_sha256,
                          Sha256Digest::FromBytes(header.tokens_sha256(), "header.tokens_sha256"));
  return decoded;
}

absl::StatusOr<Selection> DecodeSelection(const v1::GetRequest& request) {
  Selection selection;
  switch (request.part()) {
    case v1::GET_PART_WHOLE:
      selection.kind = Selection::Kind::kWhole;
      break;
    case v1::GET_PART_META:
      selection.kind = Selection::Kind::kMeta;
      break;
    case v1::GET_PART_LAYERS:
      selection.kind = Selection::Kind::kLayers;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("part is ", static_cast<int>(request.part()), ", no part of a slab"));
  }
  if (selection.kind != Selection::Kind::kLayers && request.layers_size() > 0) {
    return absl::InvalidArgumentError("layers are set, but part is not GET_PART_LAYERS");
  }
  if (static_cast<uint32_t>(request.layers_size()) > kSelectedLayersMax) {
    return absl::InvalidArgumentError(absl::StrCat("layers has ", request.layers_size(),
                                                   " entries, at most ", kSelectedLayersMax));
  }
  for (const v1::LayerSelection& layer : request.layers()) {
    selection.layers.push_back({.layer = layer.layer(), .tokens = layer.tokens()});
  }
  return selection;
}

absl::StatusOr<Page> DecodePage(const v1::ListRequest& request) {
  if (request.page_size() > limits::kListPageMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", request.page_size(), ", at most ", limits::kListPageMax));
  }
  Page page{.size = request.page_size() == 0 ? kPageDefault : request.page_size()};
  if (!request.page_token().empty()) {
    const auto after = SlabName::FromFileName(request.page_token());
    if (!after.ok()) return absl::InvalidArgumentError("page_token is none of this service's");
    page.after = *after;
  }
  return page;
}

v1::SlabId EncodeName(const SlabName& name) {
  return rpc::EncodeSlabId(name.key, name.layers, name.write_id);
}

v1::SlabInfo EncodeInfo(const SlabInfo& info, uint64_t now_s) {
  v1::SlabInfo proto = rpc::EncodeSlab({.key = info.name.key,
                                        .layers = info.name.layers,
                                        .write_id = info.name.write_id,
                                        .key_namespace = info.key_namespace,
                                        .size_bytes = info.file_bytes,
                                        .token_count = info.token_count,
                                        .text_bytes = info.text_bytes,
                                        .tokens_sha256 = info.tokens_sha256,
                                        .block_hash = info.block_hash,
                                        .tail_hash = info.tail_hash,
                                        .cut_points = info.cut_points,
                                        .reason = info.reason});
  // A time in the future reads as now.
  proto.mutable_age()->set_value((now_s - std::min(now_s, info.creation_time_s)) * 1000);
  proto.mutable_idle()->set_value((now_s - std::min(now_s, info.last_used_time_s)) * 1000);
  proto.set_hit_count(info.hit_count);
  proto.set_payload_crc32c(info.payload_crc32c);
  return proto;
}

v1::GetHeader EncodeGetHeader(const OpenGet& get) {
  v1::GetHeader header;
  header.set_size_bytes(get.meta().file_bytes());
  for (const ByteRange& range : get.ranges()) {
    v1::ByteRange& proto = *header.add_ranges();
    proto.set_offset(range.offset);
    proto.set_length(range.length);
  }
  return header;
}

}  // namespace kvmesh::blob
