// The table of docs/session-states.md: what a Compute frame does, given what is held for its
// session. Pure. It is asked when the frame runs, never when it arrives.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "common/forward/frames.h"

namespace kvmesh::shard {

enum class MissCause {
  kUnknownSession,   // never seen here, or so long ago that the cause is forgotten
  kEvictedLru,       // pushed out by count
  kEvictedBytes,     // pushed out by bytes
  kEvictedTtl,       // idle for longer than the TTL
  kEvictedOrphan,    // its stream was lost and nobody came back within the orphan TTL
  kPoisoned,         // a step stopped half-way
  kEpoch,            // the state is of an older epoch
  kLayers,           // the frame is for another layer range
  kHeld,             // another number of tokens is held
  kDigest,           // other tokens are held
  kStep,             // neither the next step nor the last one
  kNoStoredRow,      // nothing stored to answer a repeated step or a full hit from
  kCachingDisabled,  // this shard keeps no state
  kRestoreFailed,    // state was to be restored and could not be
};
inline constexpr int kMissCauseCount = 14;

// Stable name, for metrics and for ErrorInfo's `cause`: "evicted_lru".
absl::string_view MissCauseName(MissCause cause);

// What is held for a session, as far as the rules look at it.
struct HeldFacts {
  SessionEpoch newest_epoch{0};                         // of any stream accepted for the session
  StreamAttempt newest_attempt{0};                      // likewise
  bool has_state = false;                               // the fields below count only then
  MissCause absent_cause = MissCause::kUnknownSession;  // why there is no state
  SessionEpoch state_epoch{0};
  uint64_t held = 0;                // tokens
  uint64_t digest = 0;              // PrefixDigest of all held ids
  uint64_t digest_before_last = 0;  // of all but the last
  uint32_t last_token = 0;
  uint32_t last_step = 0;
  bool can_replay = false;    // the answer (at the tail) or row of the last step is stored
  bool can_full_hit = false;  // the last output row is stored, or not needed: not the tail
};

struct FrameFacts {
  SessionEpoch epoch{0};
  StreamAttempt attempt{0};
  const forward::Compute* compute = nullptr;  // well-formed: edge checks have passed
};

enum class FrameAction {
  kStateless,   // run all rows, keep nothing
  kFresh,       // new state; an older epoch's is dropped
  kAppend,      // prefill onto the held state
  kFullHit,     // no rows: answer from the stored row
  kStep,        // one decode step
  kReplay,      // send the stored answer or row again; run nothing
  kSuperseded,  // a newer epoch or attempt is known; the entry stays untouched
  kMiss,
};

struct FrameVerdict {
  FrameAction action = FrameAction::kMiss;
  MissCause cause = MissCause::kUnknownSession;  // of kMiss
  friend bool operator==(const FrameVerdict&, const FrameVerdict&) = default;
};

// `held` is null when the session has no entry. `own` is the shard's layer range.
FrameVerdict JudgeFrame(const FrameFacts& frame, const HeldFacts* held, LayerRange own,
                        bool caching);

}  // namespace kvmesh::shard
