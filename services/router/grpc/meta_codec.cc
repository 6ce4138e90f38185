#include "services/router/grpc/meta_codec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace kvmesh::router {
namespace {

constexpr int kSlabsOfARowMax = 2 * limits::kHopsMax;
constexpr size_t kTierNameBytesMax = 32;
constexpr size_t kAddressBytesMax = 512;

void SetNamespace(const forward::CacheNamespace& from, v1::CacheNamespace* to) {
  to->set_model_fp(std::string(from.model_fp.bytes()));
  to->set_quant(from.quant);
  to->set_ctx_params_hash(std::string(from.ctx_params_hash.bytes()));
}

void SetRange(LayerRange from, v1::LayerRange* to) {
  to->set_begin(from.begin);
  to->set_end(from.end);
}

void SetMillis(absl::Duration from, v1::Millis* to) {
  to->set_value(static_cast<uint64_t>(std::max<int64_t>(absl::ToInt64Milliseconds(from), 0)));
}

v1::SaveReason ToProto(forward::SaveReason reason) {
  switch (reason) {
    case forward::SaveReason::kCold:
      return v1::SAVE_REASON_COLD;
    case forward::SaveReason::kContinued:
      return v1::SAVE_REASON_CONTINUED;
    case forward::SaveReason::kFinish:
      return v1::SAVE_REASON_FINISH;
    case forward::SaveReason::kEvict:
      return v1::SAVE_REASON_EVICT;
    case forward::SaveReason::kShutdown:
      return v1::SAVE_REASON_SHUTDOWN;
  }
  return v1::SAVE_REASON_UNSPECIFIED;
}

absl::Status Malformed(absl::string_view what) {
  return absl::InternalError(absl::StrCat("the arbiter answered with ", what));
}

absl::StatusOr<LayerRange> DecodeRange(const v1::LayerRange& proto) {
  if (proto.begin() >= proto.end() || proto.end() > limits::kLayersMax) {
    return Malformed(absl::StrCat("layers [", proto.begin(), ",", proto.end(), ")"));
  }
  return LayerRange{proto.begin(), proto.end()};
}

absl::StatusOr<std::string> DecodeAddress(const std::string& address) {
  if (address.empty() || address.size() > kAddressBytesMax) {
    return Malformed(absl::StrCat("a store's address of ", address.size(), " bytes"));
  }
  return address;
}

absl::StatusOr<StoredSlab> DecodePlace(const v1::SlabPlace& proto,
                                       const Sha256Digest& tokens_sha256) {
  StoredSlab slab{.tier = proto.tier().substr(0, kTierNameBytesMax)};
  slab.ref.tokens_sha256 = tokens_sha256;
  KVMESH_ASSIGN_OR_RETURN(slab.ref.store_address, DecodeAddress(proto.address()));
  KVMESH_ASSIGN_OR_RETURN(slab.ref.key, Sha256Digest::FromHex(proto.slab().key(), "slab.key"));
  KVMESH_ASSIGN_OR_RETURN(slab.ref.layers, DecodeRange(proto.slab().layers()));
  KVMESH_ASSIGN_OR_RETURN(slab.ref.write_id,
                          WriteId::FromHex(proto.slab().write_id(), "slab.write_id"));
  return slab;
}

// Infinite where the arbiter names none.
absl::Duration DecodeTtl(const v1::Millis& ttl) {
  constexpr uint64_t kTtlMsMax = 24 * 3600 * 1000;
  if (ttl.value() == 0) return absl::InfiniteDuration();
  return absl::Milliseconds(std::min(ttl.value(), kTtlMsMax));
}

// InvalidArgument is the word for a caller's mistake; here the arbiter made it.
template <typename T>
absl::StatusOr<T> AsArbitersMistake(absl::StatusOr<T> decoded) {
  if (!absl::IsInvalidArgument(decoded.status())) return decoded;
  return Malformed(decoded.status().message());
}

absl::StatusOr<std::optional<FoundRow>> DecodeHit(const v1::LookupResponse& response,
                                                  const LeaseId& lease, uint64_t text_bytes) {
  FoundRow row{.lease = lease,
               .cut_tokens = response.token_count(),
               .cut_text_bytes = response.text_bytes(),
               .row_tokens = response.row().token_count(),
               .lease_ttl = DecodeTtl(response.lease().ttl())};
  if (row.cut_tokens == 0 || row.cut_tokens > row.row_tokens ||
      row.row_tokens > limits::kHistoryTokensMax || row.cut_text_bytes == 0 ||
      row.cut_text_bytes > text_bytes) {
    return Malformed(absl::StrCat("a cut point at ", row.cut_tokens, " tokens, ",
                                  row.cut_text_bytes, " bytes of a row of ", row.row_tokens,
                                  " tokens, for a text of ", text_bytes, " bytes"));
  }
  if (response.row().slabs_size() > kSlabsOfARowMax) {
    return Malformed(absl::StrCat("a row of ", response.row().slabs_size(), " slabs"));
  }
  KVMESH_ASSIGN_OR_RETURN(
      const Sha256Digest tokens_sha256,
      Sha256Digest::FromBytes(response.row().tokens_sha256(), "row.tokens_sha256"));
  for (const v1::SlabPlace& place : response.row().slabs()) {
    KVMESH_ASSIGN_OR_RETURN(row.slabs.emplace_back(), DecodePlace(place, tokens_sha256));
  }
  return std::optional<FoundRow>(std::move(row));
}

absl::StatusOr<Reservation> DecodeRanges(const v1::ReserveResponse& response) {
  Reservation reservation{.ttl = DecodeTtl(response.ttl())};
  KVMESH_ASSIGN_OR_RETURN(reservation.write_id,
                          WriteId::FromBytes(response.write_id(), "write_id"));
  for (const v1::ReservedRange& range : response.ranges()) {
    KVMESH_ASSIGN_OR_RETURN(const LayerRange layers, DecodeRange(range.layers()));
    KVMESH_ASSIGN_OR_RETURN(std::string address, DecodeAddress(range.address()));
    reservation.stores.emplace_back(layers, std::move(address));
  }
  return reservation;
}

}  // namespace

v1::SlabId EncodeSlabId(const forward::SlabRef& slab) {
  v1::SlabId id;
  id.set_key(slab.key.ToHex());
  SetRange(slab.layers, id.mutable_layers());
  id.set_write_id(slab.write_id.ToHex());
  return id;
}

v1::AwaitKeyRequest EncodeAwaitKey(const AwaitParent& effect) {
  v1::AwaitKeyRequest request;
  SetNamespace(effect.cache_namespace, request.mutable_namespace_());
  request.set_key(effect.key.ToHex());
  SetMillis(effect.wait, request.mutable_wait());
  return request;
}

v1::LookupRequest EncodeLookup(const LookupRow& effect) {
  v1::LookupRequest request;
  SetNamespace(effect.cache_namespace, request.mutable_namespace_());
  request.set_text(std::string(effect.prompt->text.text()));
  request.set_checkout(true);
  request.set_lease_id(std::string(effect.lease.bytes()));
  request.set_token_count_min(effect.token_count_min);
  request.set_text_bytes_max(effect.text_bytes_max);
  return request;
}

v1::AwaitFragmentRequest EncodeAwaitFragment(const AwaitFragment& effect) {
  v1::AwaitFragmentRequest request;
  SetNamespace(effect.cache_namespace, request.mutable_namespace_());
  SetRange(effect.layers, request.mutable_layers());
  for (const FragmentPosition& position : effect.positions) {
    v1::FragmentPosition* proto = request.add_positions();
    proto->set_key(position.key.ToHex());
    proto->set_tokens_sha256(std::string(position.tokens_sha256.bytes()));
    proto->set_token_count(static_cast<uint32_t>(position.tokens));
  }
  SetMillis(effect.appear_wait, request.mutable_appear_wait());
  SetMillis(effect.upload_wait, request.mutable_upload_wait());
  request.set_lease_id(std::string(effect.lease.bytes()));
  return request;
}

v1::CheckinRequest EncodeCheckin(const EndLease& effect) {
  v1::CheckinRequest request;
  request.set_lease_id(std::string(effect.lease.bytes()));
  for (const forward::SlabRef& slab : effect.bad_slabs) {
    *request.add_bad_slabs() = EncodeSlabId(slab);
  }
  return request;
}

v1::ReserveRequest EncodeReserve(const ReserveRow& effect, uint32_t layer_count,
                                 absl::Duration room_wait) {
  v1::ReserveRequest request;
  request.set_request_id(std::string(effect.request.bytes()));
  request.set_kind(v1::RESERVATION_KIND_ROW);
  SetNamespace(effect.cache_namespace, request.mutable_namespace_());
  request.set_key(effect.key.ToHex());
  request.set_model_layers(layer_count);
  for (const auto& [layers, bytes] : effect.ranges) {
    v1::RangeBytes* range = request.add_ranges();
    SetRange(layers, range->mutable_layers());
    range->set_size_bytes(bytes);
  }
  request.set_reason(ToProto(effect.reason));
  request.set_tier(effect.tier);
  SetMillis(room_wait, request.mutable_room_wait());
  return request;
}

v1::CancelReservationRequest EncodeCancel(const CancelReservation& effect) {
  v1::CancelReservationRequest request;
  request.set_request_id(std::string(effect.request.bytes()));
  return request;
}

v1::RenewRequest EncodeRenew(const RenewHolds& effect) {
  v1::RenewRequest request;
  for (const LeaseId& lease : effect.leases) request.add_lease_ids(std::string(lease.bytes()));
  for (const WriteId& write : effect.writes) request.add_write_ids(std::string(write.bytes()));
  return request;
}

absl::StatusOr<std::optional<FoundRow>> DecodeLookup(const v1::LookupResponse& response,
                                                     const LeaseId& lease, uint64_t text_bytes) {
  if (!response.found()) return std::optional<FoundRow>();
  return AsArbitersMistake(DecodeHit(response, lease, text_bytes));
}

absl::StatusOr<FoundFragment> DecodeFragment(const v1::AwaitFragmentResponse& response,
                                             const AwaitFragment& asked) {
  if (response.position() >= asked.positions.size()) {
    return Malformed(
        absl::StrCat("position ", response.position(), " of ", asked.positions.size()));
  }
  FoundFragment fragment{.position = response.position(),
                         .lease_ttl = DecodeTtl(response.lease().ttl())};
  absl::StatusOr<StoredSlab> slab = AsArbitersMistake(
      DecodePlace(response.slab(), asked.positions[fragment.position].tokens_sha256));
  if (!slab.ok()) return slab.status();
  if (slab->ref.layers != asked.layers) return Malformed("a fragment of other layers");
  fragment.slab = *std::move(slab);
  return fragment;
}

absl::StatusOr<Reservation> DecodeReservation(const v1::ReserveResponse& response) {
  return AsArbitersMistake(DecodeRanges(response));
}

}  // namespace kvmesh::router
