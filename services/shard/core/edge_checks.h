// Does a frame fit this shard at all? Asked on receipt, before anything is queued or held; whether
// it fits the session's state is asked when it runs (frame_rules.h). Pure.
#pragma once

#include "absl/status/status.h"
#include "common/forward/frames.h"
#include "services/shard/core/hop_options.h"

namespace kvmesh::shard {

// InvalidArgument: route not contiguous, history or reservation beyond the context, ids outside the
// vocabulary. FailedPrecondition: WRONG_INSTANCE, WRONG_LAYERS, MODEL_MISMATCH, UNKNOWN_FEATURE,
// FORBIDDEN_PEER; both sides shown.
absl::Status CheckOpen(const forward::Open& open, const HopOptions& options);

// `stateful_stream`: its Open reserved room.
// InvalidArgument: ids, past_len, layers or hidden rows out of range or missing; a stateful frame
// on a stateless stream. FailedPrecondition WRONG_LAYERS: a stateless frame for other layers (a
// stateful one is a cache miss).
absl::Status CheckCompute(const forward::Compute& compute, bool stateful_stream,
                          const HopOptions& options);

}  // namespace kvmesh::shard
