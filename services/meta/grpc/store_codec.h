// Frames of a store's stream to the arbiter's commands, and what it sends to stores. Every value
// from outside is checked here. InvalidArgument names the field, its value and the limit.
#pragma once

#include "absl/status/statusor.h"
#include "kvmesh/v1/meta.pb.h"
#include "services/meta/core/commands.h"
#include "services/meta/core/effects.h"

namespace kvmesh::meta {

inline constexpr int kInventoryPageMax = 1000;
inline constexpr int kOpenPutsMax = 4096;
inline constexpr size_t kAddressBytesMax = 512;

// FailedPrecondition PROTOCOL_MISMATCH: the store speaks another version; both are named.
absl::StatusOr<StoreHello> DecodeHello(const v1::StoreHello& hello, StreamId stream);
absl::StatusOr<SlabFacts> DecodeFacts(const v1::SlabAnnouncement& announcement);
// Any frame but hello and the text of a slab.
absl::StatusOr<Command> DecodeFrame(const v1::AttachStoreRequest& frame, StreamId stream);

v1::AttachStoreResponse EncodeToStore(const ToStore& message);

}  // namespace kvmesh::meta
