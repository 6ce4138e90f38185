#include "services/shard/core/frame_rules.h"

namespace kvmesh::shard {
namespace {

FrameVerdict Miss(MissCause cause) {
  return {FrameAction::kMiss, cause};
}
FrameVerdict Do(FrameAction action) {
  return {action, MissCause::kUnknownSession};
}

FrameVerdict JudgePrefill(const FrameFacts& frame, const HeldFacts* held) {
  const forward::Compute& compute = *frame.compute;
  const bool has_state = held != nullptr && held->has_state;
  if (compute.past_len.value_or(0) == 0) {
    const bool fresh = !has_state || held->state_epoch < frame.epoch;
    return fresh ? Do(FrameAction::kFresh) : Miss(MissCause::kHeld);
  }
  if (!has_state) return Miss(held == nullptr ? MissCause::kUnknownSession : held->absent_cause);
  if (held->state_epoch != frame.epoch) return Miss(MissCause::kEpoch);
  if (held->held != *compute.past_len) return Miss(MissCause::kHeld);
  if (held->digest != compute.prefix_digest.value_or(0)) return Miss(MissCause::kDigest);
  if (!compute.tokens.empty()) return Do(FrameAction::kAppend);
  return held->can_full_hit ? Do(FrameAction::kFullHit) : Miss(MissCause::kNoStoredRow);
}

FrameVerdict JudgeDecode(const FrameFacts& frame, const HeldFacts* held) {
  const forward::Compute& compute = *frame.compute;
  if (held == nullptr) return Miss(MissCause::kUnknownSession);
  if (!held->has_state) return Miss(held->absent_cause);
  if (held->state_epoch != frame.epoch) return Miss(MissCause::kEpoch);
  const uint64_t past_len = compute.past_len.value_or(0);
  const uint64_t digest = compute.prefix_digest.value_or(0);
  if (compute.step == held->last_step) {
    // The link broke after this hop had run the step.
    if (held->held != past_len + compute.tokens.size()) return Miss(MissCause::kHeld);
    if (held->digest_before_last != digest || compute.tokens.back() != held->last_token) {
      return Miss(MissCause::kDigest);
    }
    return held->can_replay ? Do(FrameAction::kReplay) : Miss(MissCause::kNoStoredRow);
  }
  if (compute.step != uint64_t{held->last_step} + 1) return Miss(MissCause::kStep);
  if (held->held != past_len) return Miss(MissCause::kHeld);
  if (held->digest != digest) return Miss(MissCause::kDigest);
  return Do(FrameAction::kStep);
}

}  // namespace

absl::string_view MissCauseName(MissCause cause) {
  switch (cause) {
    case MissCause::kUnknownSession:
      return "unknown_session";
    case MissCause::kEvictedLru:
      return "evicted_lru";
    case MissCause::kEvictedBytes:
      return "evicted_bytes";
    case MissCause::kEvictedTtl:
      return "evicted_ttl";
    case MissCause::kEvictedOrphan:
      return "evicted_orphan";
    case MissCause::kPoisoned:
      return "poisoned";
    case MissCause::kEpoch:
      return "epoch";
    case MissCause::kLayers:
      return "layers";
    case MissCause::kHeld:
      return "held";
    case MissCause::kDigest:
      return "digest";
    case MissCause::kStep:
      return "step";
    case MissCause::kNoStoredRow:
      return "no_stored_row";
    case MissCause::kCachingDisabled:
      return "caching_disabled";
    case MissCause::kRestoreFailed:
      return "restore_failed";
  }
  return "unknown";
}

FrameVerdict JudgeFrame(const FrameFacts& frame, const HeldFacts* held, LayerRange own,
                        bool caching) {
  if (frame.compute->cache_mode == forward::CacheMode::kStateless) {
    return Do(FrameAction::kStateless);
  }
  if (held != nullptr &&
      (frame.epoch < held->newest_epoch || frame.attempt < held->newest_attempt)) {
    return Do(FrameAction::kSuperseded);
  }
  if (!caching) return Miss(MissCause::kCachingDisabled);
  if (frame.compute->layers != own) return Miss(MissCause::kLayers);
  return frame.compute->cache_mode == forward::CacheMode::kPrefill ? JudgePrefill(frame, held)
                                                                   : JudgeDecode(frame, held);
}

}  // namespace kvmesh::shard
