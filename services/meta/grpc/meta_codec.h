// Protos of the callers' side of MetaService to the arbiter's commands, and its answers to protos.
// Every value from outside is checked here. InvalidArgument names the field, its value and the
// limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kvmesh/v1/meta.pb.h"
#include "services/meta/core/commands.h"
#include "services/meta/core/effects.h"
#include "services/meta/index/read_index.h"

namespace kvmesh::meta {

// Ids that one call may name, bad slabs of a Checkin, and so on.
inline constexpr int kRenewedIdsMax = 256;
inline constexpr int kBadSlabsMax = 64;
inline constexpr int kFragmentPositionsMax = 8;
inline constexpr int kEvictedKeysMax = 1000;
inline constexpr absl::Duration kWaitMax = absl::Seconds(60);
inline constexpr absl::Duration kRoomWaitDefault = absl::Seconds(2);

absl::StatusOr<slab::KeyNamespace> DecodeNamespace(const v1::CacheNamespace& key_namespace);
absl::StatusOr<SlabName> DecodeSlab(const v1::SlabId& slab);
// Of a text that is looked up.
absl::Status CheckText(absl::string_view text);

// Without its ticket, as all commands below.
absl::StatusOr<Checkout> DecodeCheckout(const v1::CheckoutRequest& request);
absl::StatusOr<LeaseId> DecodeLeaseId(const std::string& bytes);
absl::StatusOr<Renew> DecodeRenew(const v1::RenewRequest& request);
absl::StatusOr<Checkin> DecodeCheckin(const v1::CheckinRequest& request);
// With a fresh write_id.
absl::StatusOr<Reserve> DecodeReserve(const v1::ReserveRequest& request);
absl::StatusOr<CancelReservation> DecodeCancel(const v1::CancelReservationRequest& request);
absl::StatusOr<AwaitKey> DecodeAwaitKey(const v1::AwaitKeyRequest& request);
absl::StatusOr<AwaitFragment> DecodeAwaitFragment(const v1::AwaitFragmentRequest& request);
absl::StatusOr<EvictRows> DecodeEvictRows(const v1::EvictRowsRequest& request);

struct Page {
  size_t size = 0;
  std::optional<uint64_t> after;  // number of the page's last one before
};
absl::StatusOr<Page> DecodePage(uint32_t page_size, const std::string& page_token);
std::string EncodePageToken(uint64_t last);

std::optional<Tier> TierFromName(absl::string_view name);

v1::CacheNamespace EncodeNamespace(const slab::KeyNamespace& key_namespace);
v1::SlabId EncodeSlab(const SlabName& name);
v1::Incarnation EncodeIncarnation(const Incarnation& incarnation);
v1::SlabPlace EncodePlace(const PlacedSlab& slab);
v1::RowInfo EncodeRow(const RowSnapshot& row);
v1::RowSummary EncodeSummary(const RowSnapshot& row);
v1::ReservationSummary EncodeReservation(const ReservationSnapshot& reservation);
v1::ReservedRange EncodeRange(const ReservedRange& range);
v1::StoreStatus EncodeStore(const StoreSnapshot& store);
v1::Lease EncodeLease(const LeaseId& lease, absl::Duration ttl, const Incarnation& incarnation);
// Writes all but `lease` and `checkouts_lost`, into the nested messages that are there: of an
// earlier hit, say.
void EncodeHit(const LookupHit& hit, const ReadIndex& index, v1::LookupResponse* response);
void SetMillis(absl::Duration duration, v1::Millis* millis);

}  // namespace kvmesh::meta
