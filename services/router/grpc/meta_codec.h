// The router's questions to the arbiter as protos, and the arbiter's answers as checked plain
// values. Every answer that is not what the RPC promises is Internal, with the field named.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "kvmesh/v1/blob.pb.h"
#include "kvmesh/v1/meta.pb.h"
#include "services/router/core/effects.h"

namespace kvmesh::router {

v1::AwaitKeyRequest EncodeAwaitKey(const AwaitParent& effect);
v1::LookupRequest EncodeLookup(const LookupRow& effect);
v1::AwaitFragmentRequest EncodeAwaitFragment(const AwaitFragment& effect);
v1::CheckinRequest EncodeCheckin(const EndLease& effect);
v1::ReserveRequest EncodeReserve(const ReserveRow& effect, uint32_t layer_count,
                                 absl::Duration room_wait);
v1::CancelReservationRequest EncodeCancel(const CancelReservation& effect);
v1::RenewRequest EncodeRenew(const RenewHolds& effect);
v1::SlabId EncodeSlabId(const forward::SlabRef& slab);

// None: no row. The hit is a cut point of at most `text_bytes` bytes.
absl::StatusOr<std::optional<FoundRow>> DecodeLookup(const v1::LookupResponse& response,
                                                     const LeaseId& lease, uint64_t text_bytes);
absl::StatusOr<FoundFragment> DecodeFragment(const v1::AwaitFragmentResponse& response,
                                             const AwaitFragment& asked);
absl::StatusOr<Reservation> DecodeReservation(const v1::ReserveResponse& response);

}  // namespace kvmesh::router
