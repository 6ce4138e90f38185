#include "common/rpc/checkpoint_codec.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace kvmesh::rpc {
namespace {

constexpr size_t kAddressBytesMax = 256;

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; it must lie between ", least, " and ", most));
}

absl::StatusOr<forward::SlabRef> DecodeSlabRef(const v1::SlabRef& proto) {
  forward::SlabRef slab;
  KVMESH_RETURN_IF_ERROR(CheckRange("open.restore.slabs.store_address length",
                                    proto.store_address().size(), 1, kAddressBytesMax));
  slab.store_address = proto.store_address();
  KVMESH_ASSIGN_OR_RETURN(slab.key, Sha256Digest::FromBytes(proto.key(), "open.restore.slabs.key"));
  const v1::LayerRange& layers = proto.layers();
  KVMESH_RETURN_IF_ERROR(
      CheckRange("open.restore.slabs.layers.end", layers.end(), 1, limits::kLayersMax));
  KVMESH_RETURN_IF_ERROR(
      CheckRange("open.restore.slabs.layers.begin", layers.begin(), 0, layers.end() - 1));
  slab.layers = {.begin = layers.begin(), .end = layers.end()};
  KVMESH_ASSIGN_OR_RETURN(slab.write_id,
                          WriteId::FromBytes(proto.write_id(), "open.restore.slabs.write_id"));
  KVMESH_ASSIGN_OR_RETURN(
      slab.tokens_sha256,
      Sha256Digest::FromBytes(proto.tokens_sha256(), "open.restore.slabs.tokens_sha256"));
  return slab;
}

absl::StatusOr<forward::HopRestore> DecodeRestore(const v1::HopRestore& proto) {
  forward::HopRestore restore{
      .hop_index = proto.hop_index(), .tokens = proto.tokens(), .last_step = proto.last_step()};
  KVMESH_RETURN_IF_ERROR(
      CheckRange("open.restore.hop_index", proto.hop_index(), 0, limits::kHopsMax - 1));
  KVMESH_RETURN_IF_ERROR(
      CheckRange("open.restore.tokens", proto.tokens(), 1, limits::kHistoryTokensMax));
  KVMESH_RETURN_IF_ERROR(
      CheckRange("open.restore.last_step", proto.last_step(), 0, limits::kHistoryTokensMax));
  KVMESH_RETURN_IF_ERROR(CheckRange(
      "open.restore.slabs count", static_cast<uint64_t>(proto.slabs_size()), 1, limits::kHopsMax));
  restore.slabs.reserve(static_cast<size_t>(proto.slabs_size()));
  for (const v1::SlabRef& slab : proto.slabs()) {
    KVMESH_ASSIGN_OR_RETURN(restore.slabs.emplace_back(), DecodeSlabRef(slab));
  }
  return restore;
}

void SetBytes(std::string* field, absl::string_view bytes) {
  field->assign(bytes.data(), bytes.size());
}

}  // namespace

absl::StatusOr<std::vector<forward::HopRestore>> DecodeRestores(const v1::Open& proto) {
  KVMESH_RETURN_IF_ERROR(CheckRange(
      "open.restore count", static_cast<uint64_t>(proto.restore_size()), 0, limits::kHopsMax));
  std::vector<forward::HopRestore> restores;
  restores.reserve(static_cast<size_t>(proto.restore_size()));
  for (const v1::HopRestore& restore : proto.restore()) {
    const auto same_hop = [&](const auto& r) { return r.hop_index == restore.hop_index(); };
    if (std::any_of(restores.begin(), restores.end(), same_hop)) {
      return absl::InvalidArgumentError(
          absl::StrCat("open.restore names hop ", restore.hop_index(), " twice"));
    }
    KVMESH_ASSIGN_OR_RETURN(restores.emplace_back(), DecodeRestore(restore));
  }
  return restores;
}

void EncodeRestores(const std::vector<forward::HopRestore>& restores, v1::Open* proto) {
  for (const forward::HopRestore& restore : restores) {
    v1::HopRestore* entry = proto->add_restore();
    entry->set_hop_index(restore.hop_index);
    entry->set_tokens(restore.tokens);
    entry->set_last_step(restore.last_step);
    for (const forward::SlabRef& slab : restore.slabs) {
      v1::SlabRef* ref = entry->add_slabs();
      ref->set_store_address(slab.store_address);
      SetBytes(ref->mutable_key(), slab.key.bytes());
      ref->mutable_layers()->set_begin(slab.layers.begin);
      ref->mutable_layers()->set_end(slab.layers.end);
      SetBytes(ref->mutable_write_id(), slab.write_id.bytes());
      SetBytes(ref->mutable_tokens_sha256(), slab.tokens_sha256.bytes());
    }
  }
}

}  // namespace kvmesh::rpc
