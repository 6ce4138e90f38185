#include "services/meta/grpc/meta_codec.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/hex_id.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace kvmesh::meta {
namespace {

constexpr uint32_t kPageDefault = 100;

absl::StatusOr<LayerRange> DecodeLayers(const v1::LayerRange& layers, absl::string_view field) {
  if (layers.begin() >= layers.end() || layers.end() > limits::kLayersMax) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", layers.begin(), ":", layers.end(),
                                                   "; at most ", limits::kLayersMax, " layers"));
  }
  return LayerRange{.begin = layers.begin(), .end = layers.end()};
}

absl::StatusOr<absl::Duration> DecodeWait(const v1::Millis& wait, absl::Duration wait_max,
                                          absl::string_view field) {
  const auto max_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(wait_max));
  if (wait.value() > max_ms) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", wait.value(), " ms, at most ", max_ms));
  }
  return absl::Milliseconds(wait.value());
}

absl::Status CheckCount(int count, int count_min, int count_max, absl::string_view field) {
  if (count >= count_min && count <= count_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", count, " entries; ", count_min, " to ", count_max));
}

absl::StatusOr<slab::SaveReason> DecodeReason(v1::SaveReason reason) {
  if (reason < v1::SAVE_REASON_COLD || reason > v1::SAVE_REASON_SHUTDOWN) {
    return absl::InvalidArgumentError(
        absl::StrCat("reason is ", static_cast<int>(reason), ", no reason of a save"));
  }
  static_assert(static_cast<int>(slab::SaveReason::kCold) == v1::SAVE_REASON_COLD &&
                static_cast<int>(slab::SaveReason::kShutdown) == v1::SAVE_REASON_SHUTDOWN);
  return static_cast<slab::SaveReason>(reason);
}

absl::StatusOr<std::vector<RangeBytes>> DecodeRanges(const v1::ReserveRequest& request) {
  const int count_max =
      request.kind() == v1::RESERVATION_KIND_FRAGMENT ? 1 : static_cast<int>(limits::kHopsMax);
  KVMESH_RETURN_IF_ERROR(CheckCount(request.ranges_size(), 1, count_max, "ranges"));
  std::vector<RangeBytes> ranges;
  ranges.reserve(static_cast<size_t>(request.ranges_size()));
  for (const v1::RangeBytes& proto : request.ranges()) {
    RangeBytes range{.size_bytes = proto.size_bytes()};
    KVMESH_ASSIGN_OR_RETURN(range.layers, DecodeLayers(proto.layers(), "ranges.layers"));
    if (range.layers.end > request.model_layers()) {
      return absl::InvalidArgumentError(absl::StrCat("ranges.layers is ", range.layers.begin, ":",
                                                     range.layers.end, "; model_layers is ",
                                                     request.model_layers()));
    }
    if (range.size_bytes == 0 || range.size_bytes > kSlabBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("ranges.size_bytes is ", range.size_bytes, "; 1 to ", kSlabBytesMax));
    }
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace

absl::StatusOr<slab::KeyNamespace> DecodeNamespace(const v1::CacheNamespace& key_namespace) {
  for (const auto& [field, value] :
       {std::pair("namespace.model_fp", &key_namespace.model_fp()),
        std::pair("namespace.ctx_params_hash", &key_namespace.ctx_params_hash())}) {
    if (value->size() != Sha256Digest::kSize) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, " has ", value->size(), " bytes; ", Sha256Digest::kSize));
    }
  }
  if (key_namespace.quant().empty() || key_namespace.quant().size() > slab::kLabelBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("namespace.quant has ",
                                                   key_namespace.quant().size(), " bytes; 1 to ",
                                                   slab::kLabelBytesMax));
  }
  return slab::KeyNamespace{.model_fp = key_namespace.model_fp(),
                            .quant = key_namespace.quant(),
                            .ctx_params = key_namespace.ctx_params_hash()};
}

absl::StatusOr<SlabName> DecodeSlab(const v1::SlabId& slab) {
  SlabName name;
  KVMESH_ASSIGN_OR_RETURN(name.key, IdFromHex<Sha256Digest>(slab.key(), "slab.key"));
  KVMESH_ASSIGN_OR_RETURN(name.layers, DecodeLayers(slab.layers(), "slab.layers"));
  KVMESH_ASSIGN_OR_RETURN(name.write_id, IdFromHex<WriteId>(slab.write_id(), "slab.write_id"));
  return name;
}

absl::Status CheckText(absl::string_view text) {
  if (text.size() <= limits::kTextBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("text has ", text.size(), " bytes, at most ", limits::kTextBytesMax));
}

absl::StatusOr<LeaseId> DecodeLeaseId(const std::string& bytes) {
  return LeaseId::FromBytes(bytes, "lease_id");
}

absl::StatusOr<Checkout> DecodeCheckout(const v1::CheckoutRequest& request) {
  Checkout checkout;
  KVMESH_ASSIGN_OR_RETURN(checkout.key, IdFromHex<Sha256Digest>(request.key(), "key"));
  KVMESH_ASSIGN_OR_RETURN(checkout.write_id, IdFromHex<WriteId>(request.write_id(), "write_id"));
  KVMESH_ASSIGN_OR_RETURN(checkout.lease, DecodeLeaseId(request.lease_id()));
  return checkout;
}

absl::StatusOr<Renew> DecodeRenew(const v1::RenewRequest& request) {
  KVMESH_RETURN_IF_ERROR(CheckCount(request.lease_ids_size() + request.write_ids_size(), 0,
                                    kRenewedIdsMax, "lease_ids and write_ids"));
  Renew renew;
  renew.leases.reserve(static_cast<size_t>(request.lease_ids_size()));
  for (const std::string& bytes : request.lease_ids()) {
    KVMESH_ASSIGN_OR_RETURN(const LeaseId id, LeaseId::FromBytes(bytes, "lease_ids"));
    renew.leases.push_back(id);
  }
  renew.writes.reserve(static_cast<size_t>(request.write_ids_size()));
  for (const std::string& bytes : request.write_ids()) {
    KVMESH_ASSIGN_OR_RETURN(const WriteId id, WriteId::FromBytes(bytes, "write_ids"));
    renew.writes.push_back(id);
  }
  return renew;
}

absl::StatusOr<Checkin> DecodeCheckin(const v1::CheckinRequest& request) {
  Checkin checkin;
  KVMESH_ASSIGN_OR_RETURN(checkin.lease, DecodeLeaseId(request.lease_id()));
  KVMESH_RETURN_IF_ERROR(CheckCount(request.bad_slabs_size(), 0, kBadSlabsMax, "bad_slabs"));
  checkin.bad_slabs.reserve(static_cast<size_t>(request.bad_slabs_size()));
  for (const v1::SlabId& proto : request.bad_slabs()) {
    KVMESH_ASSIGN_OR_RETURN(const SlabName name, DecodeSlab(proto));
    checkin.bad_slabs.push_back(name);
  }
  return checkin;
}

absl::StatusOr<Reserve> DecodeReserve(const v1::ReserveRequest& request) {
  Reserve reserve{.model_layers = request.model_layers(), .write_id = RandomId<WriteId>()};
  KVMESH_ASSIGN_OR_RETURN(reserve.request,
                          RequestId::FromBytes(request.request_id(), "request_id"));
  if (request.kind() != v1::RESERVATION_KIND_ROW &&
      request.kind() != v1::RESERVATION_KIND_FRAGMENT) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind is ", static_cast<int>(request.kind()), ", no kind of a reservation"));
  }
  reserve.kind = request.kind() == v1::RESERVATION_KIND_ROW ? ReservationKind::kRow
                                                            : ReservationKind::kFragment;
  KVMESH_ASSIGN_OR_RETURN(reserve.key_namespace, DecodeNamespace(request.namespace_()));
  KVMESH_ASSIGN_OR_RETURN(reserve.key, IdFromHex<Sha256Digest>(request.key(), "key"));
  if (request.model_layers() == 0 || request.model_layers() > limits::kLayersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("model_layers is ", request.model_layers(), "; 1 to ", limits::kLayersMax));
  }
  KVMESH_ASSIGN_OR_RETURN(reserve.ranges, DecodeRanges(request));
  KVMESH_ASSIGN_OR_RETURN(reserve.reason, DecodeReason(request.reason()));
  if (!request.tier().empty()) {
    reserve.tier = TierFromName(request.tier());
    if (!reserve.tier) return absl::InvalidArgumentError("tier is none of ram, ram_file, disk");
  }
  if (request.has_namespace_bytes_max()) {
    reserve.namespace_bytes_max = request.namespace_bytes_max();
  }
  reserve.room_wait = kRoomWaitDefault;
  if (request.has_room_wait()) {
    KVMESH_ASSIGN_OR_RETURN(reserve.room_wait,
                            DecodeWait(request.room_wait(), limits::kRoomWaitMax, "room_wait"));
  }
  return reserve;
}

absl::StatusOr<CancelReservation> DecodeCancel(const v1::CancelReservationRequest& request) {
  if (request.write_id().empty() == request.request_id().empty()) {
    return absl::InvalidArgumentError("exactly one of write_id and request_id is wanted");
  }
  CancelReservation cancel;
  if (request.request_id().empty()) {
    KVMESH_ASSIGN_OR_RETURN(cancel.which, WriteId::FromBytes(request.write_id(), "write_id"));
  } else {
    KVMESH_ASSIGN_OR_RETURN(cancel.which, RequestId::FromBytes(request.request_id(), "request_id"));
  }
  return cancel;
}

absl::StatusOr<AwaitKey> DecodeAwaitKey(const v1::AwaitKeyRequest& request) {
  AwaitKey await;
  KVMESH_ASSIGN_OR_RETURN(await.key_namespace, DecodeNamespace(request.namespace_()));
  KVMESH_ASSIGN_OR_RETURN(await.key, IdFromHex<Sha256Digest>(request.key(), "key"));
  KVMESH_ASSIGN_OR_RETURN(await.wait, DecodeWait(request.wait(), kWaitMax, "wait"));
  return await;
}

absl::StatusOr<AwaitFragment> DecodeAwaitFragment(const v1::AwaitFragmentRequest& request) {
  AwaitFragment await;
  KVMESH_ASSIGN_OR_RETURN(await.key_namespace, DecodeNamespace(request.namespace_()));
  KVMESH_ASSIGN_OR_RETURN(await.layers, DecodeLayers(request.layers(), "layers"));
  KVMESH_RETURN_IF_ERROR(
      CheckCount(request.positions_size(), 1, kFragmentPositionsMax, "positions"));
  await.positions.reserve(static_cast<size_t>(request.positions_size()));
  for (const v1::FragmentPosition& proto : request.positions()) {
    FragmentPosition position{.token_count = proto.token_count()};
    KVMESH_ASSIGN_OR_RETURN(position.key, IdFromHex<Sha256Digest>(proto.key(), "positions.key"));
    KVMESH_ASSIGN_OR_RETURN(
        position.tokens_sha256,
        Sha256Digest::FromBytes(proto.tokens_sha256(), "positions.tokens_sha256"));
    await.positions.push_back(position);
  }
  KVMESH_ASSIGN_OR_RETURN(await.appear_wait,
                          DecodeWait(request.appear_wait(), kWaitMax, "appear_wait"));
  KVMESH_ASSIGN_OR_RETURN(await.upload_wait,
                          DecodeWait(request.upload_wait(), kWaitMax, "upload_wait"));
  KVMESH_ASSIGN_OR_RETURN(await.lease, DecodeLeaseId(request.lease_id()));
  return await;
}

absl::StatusOr<EvictRows> DecodeEvictRows(const v1::EvictRowsRequest& request) {
  const int selectors = (request.keys_size() > 0 ? 1 : 0) + (request.all() ? 1 : 0) +
                        (request.has_namespace_() ? 1 : 0);
  if (selectors != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(selectors, " selectors; exactly one of keys, all and namespace is wanted"));
  }
  KVMESH_RETURN_IF_ERROR(CheckCount(request.keys_size(), 0, kEvictedKeysMax, "keys"));
  EvictRows evict{.dry_run = request.dry_run(),
                  .idle_min = absl::Milliseconds(
                      std::min<uint64_t>(request.idle_min().value(), uint64_t{1} << 52))};
  evict.keys.reserve(static_cast<size_t>(request.keys_size()));
  for (const std::string& hex : request.keys()) {
    KVMESH_ASSIGN_OR_RETURN(const Sha256Digest key, IdFromHex<Sha256Digest>(hex, "keys"));
    evict.keys.push_back(key);
  }
  if (request.has_namespace_()) {
    KVMESH_ASSIGN_OR_RETURN(evict.key_namespace, DecodeNamespace(request.namespace_()));
  }
  return evict;
}

absl::StatusOr<Page> DecodePage(uint32_t page_size, const std::string& page_token) {
  if (page_size > limits::kListPageMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", page_size, ", at most ", limits::kListPageMax));
  }
  Page page{.size = page_size == 0 ? kPageDefault : page_size};
  if (page_token.empty()) return page;
  uint64_t after = 0;
  if (!absl::SimpleAtoi(page_token, &after)) {
    return absl::InvalidArgumentError("page_token is none of this service's");
  }
  page.after = after;
  return page;
}

std::string EncodePageToken(uint64_t last) {
  return absl::StrCat(last);
}

std::optional<Tier> TierFromName(absl::string_view name) {
  for (int i = 0; i < kTiers; ++i) {
    const auto tier = static_cast<Tier>(i);
    if (ToString(tier) == name) return tier;
  }
  return std::nullopt;
}

}  // namespace kvmesh::meta
