#include "services/router/grpc/watch_codec.h"

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace kvmesh::router {
namespace {

absl::Status CheckLayers(const v1::WatchResponse& proto) {
  const v1::LayerRange& layers = proto.layers();
  if (proto.layer_count() == 0 || proto.layer_count() > limits::kLayersMax ||
      layers.begin() >= layers.end() || layers.end() > proto.layer_count()) {
    return absl::InvalidArgumentError(absl::StrCat("layers is [", layers.begin(), ",", layers.end(),
                                                   ") of ", proto.layer_count()));
  }
  if (static_cast<uint32_t>(proto.layer_digests_size()) != layers.end() - layers.begin()) {
    return absl::InvalidArgumentError(absl::StrCat("layer_digests has ", proto.layer_digests_size(),
                                                   " entries for ", layers.end() - layers.begin(),
                                                   " layers"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Sha256Digest> OptionalDigest(const std::string& bytes, absl::string_view field) {
  if (bytes.empty()) return Sha256Digest();
  return Sha256Digest::FromBytes(bytes, field);
}

}  // namespace

absl::StatusOr<ShardFacts> DecodeWatch(const std::string& address, const v1::WatchResponse& proto) {
  KVMESH_RETURN_IF_ERROR(CheckLayers(proto));
  ShardFacts facts{
      .address = address,
      .layers = {proto.layers().begin(), proto.layers().end()},
      .layer_count = proto.layer_count(),
      .protocol_version = proto.protocol_version(),
      .features = {proto.features().begin(), proto.features().end()},
      .quant = proto.quant(),
      .numerics_id = proto.numerics_id(),
      .supports_kv_cache = proto.supports_kv_cache(),
      .draining = proto.draining(),
      .live_sessions = proto.live_sessions(),
      .sessions_max = proto.capacity().sessions_max(),
      .bytes_used = proto.capacity().bytes_used(),
      .bytes_max = proto.capacity().bytes_max(),
      .state_bytes = {.per_token = proto.capacity().bytes_per_token(),
                      .fixed = proto.capacity().bytes_fixed()},
      .context_length = proto.context_length(),
      .hidden_size = proto.hidden_size(),
      .vocab_size = proto.vocab_size(),
  };
  KVMESH_ASSIGN_OR_RETURN(facts.instance,
                          InstanceId::FromBytes(proto.instance_id(), "instance_id"));
  for (const std::string& digest : proto.layer_digests()) {
    KVMESH_ASSIGN_OR_RETURN(facts.layer_digests.emplace_back(),
                            Sha256Digest::FromBytes(digest, "layer_digests"));
  }
  KVMESH_ASSIGN_OR_RETURN(facts.embedding_digest,
                          OptionalDigest(proto.embedding_digest(), "embedding_digest"));
  KVMESH_ASSIGN_OR_RETURN(facts.head_digest, OptionalDigest(proto.head_digest(), "head_digest"));
  KVMESH_ASSIGN_OR_RETURN(facts.config_digest,
                          Sha256Digest::FromBytes(proto.config_digest(), "config_digest"));
  KVMESH_ASSIGN_OR_RETURN(facts.tokenizer_digest,
                          Sha256Digest::FromBytes(proto.tokenizer_digest(), "tokenizer_digest"));
  return facts;
}

}  // namespace kvmesh::router
