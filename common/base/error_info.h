// Machine-readable causes on an absl::Status: google.rpc.ErrorInfo and RetryInfo without a proto.
// Cores attach and read them here; common/rpc/status_bridge.h carries them over the wire.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kvmesh {

// Stable names of causes; the domain is always "kvmesh".
namespace reason {
inline constexpr absl::string_view kCacheMiss = "CACHE_MISS";  // metadata: cause, hop, held, wanted
inline constexpr absl::string_view kSuperseded = "SUPERSEDED";
inline constexpr absl::string_view kDraining = "DRAINING";
inline constexpr absl::string_view kWrongInstance = "WRONG_INSTANCE";
inline constexpr absl::string_view kWrongLayers = "WRONG_LAYERS";
inline constexpr absl::string_view kProtocolMismatch = "PROTOCOL_MISMATCH";
inline constexpr absl::string_view kModelMismatch = "MODEL_MISMATCH";
inline constexpr absl::string_view kUnknownFeature = "UNKNOWN_FEATURE";
inline constexpr absl::string_view kForbiddenPeer = "FORBIDDEN_PEER";
inline constexpr absl::string_view kHopUnavailable =
    "HOP_UNAVAILABLE";  // metadata: hop, address, instance_id
inline constexpr absl::string_view kNoRoom = "NO_ROOM";
inline constexpr absl::string_view kTooLarge = "TOO_LARGE";  // would not fit an empty shard
inline constexpr absl::string_view kQueueFull = "QUEUE_FULL";
inline constexpr absl::string_view kBadLogits = "BAD_LOGITS";  // metadata: cause
inline constexpr absl::string_view kEngineFailed = "ENGINE_FAILED";
}  // namespace reason

struct ErrorInfo {
  std::string reason;
  std::map<std::string, std::string> metadata;
  friend bool operator==(const ErrorInfo&, const ErrorInfo&) = default;
};

// `status` with `info` attached (replacing one that was there). OK stays OK.
absl::Status WithErrorInfo(absl::Status status, const ErrorInfo& info);
std::optional<ErrorInfo> ErrorInfoOf(const absl::Status& status);
// The reason, or empty.
std::string ReasonOf(const absl::Status& status);

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

}  // namespace kvmesh
