// What a Generation wants done. Each is performed as it stands, in order; what comes of it goes
// back as one of the generation's inputs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/forward/frames.h"
#include "services/router/core/checkpoint.h"
#include "services/router/core/route_planner.h"

namespace kvmesh::router {

enum class FinishReason { kNone, kEos, kLength, kStop };

struct NeedRoute {  // answer with OnRoute
  RouteRequest request;
};
struct OpenStream {  // to open.hops[0]; frames follow
  StreamAttempt attempt{0};
  forward::Open open;
};
struct SendFrame {  // Compute, Save or Close; after a Close no more frames follow (half-close)
  StreamAttempt attempt{0};
  forward::Frame frame;
};
struct EndStream {  // cancel the stream; its end need not be reported
  StreamAttempt attempt{0};
};
struct ProbeSessions {  // GetSession at every hop, in parallel; any answer counts, NOT_FOUND too
  StreamAttempt attempt{0};
  std::vector<forward::HopRef> hops;
};
struct DropSession {
  forward::HopRef hop;
  SessionId session;
  SessionEpoch epoch{0};
};

// Checkpoints. Every call has an end: `timeout` after it began it counts as DEADLINE_EXCEEDED.
struct AwaitParent {  // answer with OnParent, however it ends
  MetaCall call{0};
  forward::CacheNamespace cache_namespace;
  Sha256Digest key;
  absl::Duration wait;
};
struct LookupRow {  // with checkout; answer with OnLookup
  MetaCall call{0};
  forward::CacheNamespace cache_namespace;
  std::shared_ptr<const PromptText> prompt;  // shared with the reading that follows
  LeaseId lease;
  uint32_t token_count_min = 0;
  uint64_t text_bytes_max = 0;  // 0: no limit
  absl::Duration timeout;
};
// Reads the meta section of `slab`, checks that it is this slab, and joins the seam at the cut
// point; answer with OnCheckpoint. Its errors: those of JoinSeam, DataLoss too for a slab that is
// not sound or not the one named; those of the store.
struct ReadCheckpoint {
  MetaCall call{0};
  forward::CacheNamespace cache_namespace;
  forward::SlabRef slab;
  uint64_t cut_tokens = 0;
  uint64_t cut_text_bytes = 0;
  std::shared_ptr<const PromptText> prompt;  // shared with the look-up before it
  absl::Duration timeout;
};
struct AwaitFragment {  // answer with OnFragment
  MetaCall call{0};
  forward::CacheNamespace cache_namespace;
  LayerRange layers;
  std::vector<FragmentPosition> positions;
  absl::Duration appear_wait;
  absl::Duration upload_wait;
  LeaseId lease;
};
struct EndLease {  // Checkin; no answer
  LeaseId lease;
  std::vector<forward::SlabRef> bad_slabs;
};
struct ReserveRow {  // answer with OnReserved
  MetaCall call{0};
  RequestId request;
  forward::CacheNamespace cache_namespace;
  Sha256Digest key;
  forward::SaveReason reason = forward::SaveReason::kCold;
  std::vector<std::pair<LayerRange, uint64_t>> ranges;  // bytes of each slab, at most
  std::string tier;
  absl::Duration timeout;
};
struct CancelReservation {  // no answer
  RequestId request;
};
struct RenewHolds {  // no answer: what is gone shows when it is used
  std::vector<LeaseId> leases;
  std::vector<WriteId> writes;
};

// For metrics and logs.
enum class EventKind { kCacheMiss, kReprefill, kReplan, kLinkRetry, kRefused, kWatchdog, kRepair };
absl::string_view EventName(EventKind kind);
struct Event {
  EventKind kind = EventKind::kCacheMiss;
  std::string detail;  // of kCacheMiss: the cause
};
struct SaveEnded {
  forward::SaveReason reason = forward::SaveReason::kCold;
  std::string result;  // "started", or why there was none
};

struct Done {  // once; the client's answer
  absl::Status status;
  FinishReason reason = FinishReason::kNone;
};

using Effect = std::variant<NeedRoute, OpenStream, SendFrame, EndStream, ProbeSessions, DropSession,
                            AwaitParent, LookupRow, ReadCheckpoint, AwaitFragment, EndLease,
                            ReserveRow, CancelReservation, RenewHolds, Event, SaveEnded, Done>;
using Effects = std::vector<Effect>;

}  // namespace kvmesh::router
