// What a Generation does with checkpoints: look-ups before a prefill, repairs, saves.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"
#include "services/router/core/generation.h"

namespace kvmesh::router {
namespace {

constexpr uint32_t kRepairsInRowMax = 2;
constexpr absl::string_view kRestoreFailed = "restore_failed:";  // causes of a CACHE_MISS

std::string MetadataOf(const ErrorInfo& info, const std::string& name) {
  const auto found = info.metadata.find(name);
  return found == info.metadata.end() ? "" : found->second;
}

// The name of the slab that a failed restore blames; empty: none is bad.
std::string BadSlabOf(const ErrorInfo& info) {
  if (MetadataOf(info, "slab_is_bad") != "true") return "";
  return absl::StrCat(MetadataOf(info, "slab_key"), ".",
                      absl::StrReplaceAll(MetadataOf(info, "slab_layers"), {{":", "-"}}), ".",
                      MetadataOf(info, "slab_write_id"));
}

// Whether a hop that has no state for this cause may have left a fragment.
bool MayHaveFragment(absl::string_view miss_cause) {
  return miss_cause == "unknown_session" || absl::StartsWith(miss_cause, "evicted_");
}

bool SameLayers(const std::vector<forward::HopRef>& a, const std::vector<forward::HopRef>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const forward::HopRef& one, const forward::HopRef& other) {
                      return one.layers == other.layers;
                    });
}

}  // namespace

// Ids that came from text have no checkpoints: they may yet change.
bool Generation::UsesCheckpoints() const {
  return checkpoints_.has_value() && route_.checkpoints && !route_.stateless && pieces_.empty();
}

void Generation::LookUpOrPrefill(MonoTime now) {
  if (!UsesCheckpoints()) return StartPrefill(nullptr, now);
  phase_ = Phase::kLookup;
  if (stats_.tokens == 0) {
    const uint64_t room = std::min(route_.context_length, limits::kHistoryTokensMax);
    const uint64_t tokens_max = room > spec_.max_tokens ? room - spec_.max_tokens : 0;
    checkpoints_->LookUpPrompt(history_, std::max<uint64_t>(tokens_max, history_.size()), now);
  } else {
    checkpoints_->LookUpSequence(history_, now);
  }
  AfterLookup(now);
}

void Generation::AfterLookup(MonoTime now) {
  if (phase_ != Phase::kLookup || checkpoints_->planner().running()) return;
  const std::optional<RestoreChoice>& choice = checkpoints_->planner().choice();
  if (stats_.tokens == 0) {
    UseOwnPrompt();  // an earlier row may have brought other ids
    if (choice.has_value()) {
      UseChoice(*choice);
    } else {
      reuse_ = {.cause = checkpoints_->planner().cold_cause()};
    }
  }
  StartPrefill(choice.has_value() ? &*choice : nullptr, now);
}

void Generation::UseChoice(const RestoreChoice& choice) {
  const auto cached = static_cast<uint32_t>(choice.restore_tokens);
  reuse_ = {.outcome = choice.full_hit ? Outcome::kExact : Outcome::kPartial,
            .cause = "",
            .cached_tokens = cached,
            .cached_by_tier = TokensByTier(choice.slabs, route_.hops.back().layers.end, cached),
            .drifted_tokens = choice.seam.drifted_tokens};
  if (choice.seam.ids == history_) return;
  history_ = choice.seam.ids;
  prompt_tokens_ = ids_known_ = history_.size();
  digester_.Reset();
  checkpoints_->ForgetText();
}

void Generation::UseOwnPrompt() {
  if (history_ == spec_.prompt) return;
  history_ = spec_.prompt;
  prompt_tokens_ = ids_known_ = history_.size();
  digester_.Reset();
  checkpoints_->ForgetText();
}

// The hops of the last steps are all there but some that lost their state, or that others stand in
// for: those may go on from the fragments that were saved for their layers.
bool Generation::BeginRepair(MonoTime now) {
  if (state_hops_.empty() || !UsesCheckpoints() || !SameLayers(state_hops_, route_.hops) ||
      repairs_in_row_ >= kRepairsInRowMax) {
    return false;
  }
  std::vector<uint32_t> lost;
  for (uint32_t i = 0; i < route_.hops.size(); ++i) {
    if (state_hops_[i] != route_.hops[i]) lost.push_back(i);
  }
  ++repairs_in_row_;
  phase_ = Phase::kRepair;
  touch_at_ = now + checkpoints_->touch_interval();
  checkpoints_->BeginRepair(history_, lost, stats_.tokens, now);
  AfterRepair(now);
  return true;
}

void Generation::AfterRepair(MonoTime now) {
  if (phase_ != Phase::kRepair || checkpoints_->repair().running()) return;
  if (!checkpoints_->repair().complete()) {
    checkpoints_->repair().End("");
    state_hops_.clear();
    return LookUpOrPrefill(now);
  }
  restore_ = checkpoints_->repair().Restores();
  repairing_ = true;
  OpenNewStream(now);
  SendDecode(now);
}

// True: a hop could not load what it was told to, and what follows is under way.
bool Generation::OnFailedRestore(const ErrorInfo& info, MonoTime now) {
  const std::string cause = MetadataOf(info, "cause");
  if (restore_.empty() || !absl::StartsWith(cause, kRestoreFailed)) return false;
  state_hops_.clear();
  if (std::exchange(repairing_, false)) {
    reprefill_due_ = true;
    checkpoints_->repair().End(BadSlabOf(info));
    LookUpOrPrefill(now);
    return true;
  }
  phase_ = Phase::kLookup;
  checkpoints_->planner().Failed(std::string(absl::StripPrefix(cause, kRestoreFailed)),
                                 BadSlabOf(info), now);
  AfterLookup(now);
  return true;
}

// After a miss that one hop reported: it counts as another process that took its place.
void Generation::MarkLost(const ErrorInfo& info) {
  uint32_t hop = 0;
  const bool known = absl::SimpleAtoi(MetadataOf(info, "hop"), &hop) && hop < state_hops_.size() &&
                     MayHaveFragment(MetadataOf(info, "cause"));
  if (!known || !UsesCheckpoints()) return state_hops_.clear();
  state_hops_[hop].instance = InstanceId();
}

void Generation::OnOpened(const forward::Opened& opened) {
  if (!opened.restored || restores_open_ == 0) return;
  if (--restores_open_ == 0) OnRestored();
}

void Generation::OnRestored() {
  restores_open_ = 0;
  if (!checkpoints_.has_value()) return;
  if (checkpoints_->planner().choice().has_value()) checkpoints_->planner().Taken();
  checkpoints_->repair().End("");
}

// The hops hold the whole sequence and its last output row: the tail answers from it.
void Generation::SendFullHit(MonoTime now) {
  phase_ = Phase::kPrefill;
  Emit(
      SendFrame{StreamAttempt{attempt_}, forward::Compute{
                                             .cache_mode = forward::CacheMode::kPrefill,
                                             .past_len = prefill_sent_,
                                             .layers = route_.hops[0].layers,
                                             .step = stats_.tokens,
                                             .tokens = {},
                                             .prefix_digest = digester_.At(history_, prefill_sent_),
                                             .want_logits = true,
                                         }});
  ++chunks_in_flight_;
  StepSent(now);
}

// How many tokens the hops hold once they have run what was sent on this stream.
uint64_t Generation::SentTokens() const {
  if (phase_ == Phase::kPrefill) return prefill_sent_;
  return history_.size() - (step_in_flight_ ? 0 : 1);
}

void Generation::PumpSaves() {
  if (!UsesCheckpoints() || !stream_open_) return;
  for (forward::Save& save : checkpoints_->saves().TakeReady(route_.hops, SentTokens())) {
    forward::Frame frame = std::move(save);
    SendFrame& send =
        std::get<SendFrame>(effects_.emplace_back(SendFrame{StreamAttempt{attempt_}}));
    send.frame = std::move(frame);
  }
}

// True: the next step waits for a reservation, so that the snapshot meets its position.
bool Generation::HoldStep(MonoTime now) {
  if (!UsesCheckpoints() || !checkpoints_->SaveContinued(history_, stats_.tokens)) return false;
  held_until_ = now + checkpoints_->step_hold_max();
  return true;
}

// True: Close waits for the reservation. The hops hold all but the last token, whatever runs.
bool Generation::ReserveFinish(const absl::Status& status) {
  const bool ended_well =
      status.ok() || absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
  if (!UsesCheckpoints() || !ended_well || stats_.tokens == 0) return false;
  const uint64_t seen = prompt_tokens_ + sink_.tokens_shown();
  const uint64_t held = history_.size() - 1;
  finish_key_ = checkpoints_->FinishKey(history_, seen, held);
  if (!stream_open_ || state_hops_.empty()) return false;
  return checkpoints_->SaveFinish(history_, seen, held);
}

void Generation::OnParent(MetaCall call, MonoTime now) {
  if (!checkpoints_.has_value()) return;
  checkpoints_->planner().OnParent(call, now);
  AfterLookup(now);
}

void Generation::OnLookup(MetaCall call, absl::StatusOr<std::optional<FoundRow>> found,
                          MonoTime now) {
  if (!checkpoints_.has_value()) return;
  if (found.ok() && found->has_value()) checkpoints_->Granted((*found)->lease_ttl, now);
  checkpoints_->planner().OnLookup(call, std::move(found), now);
  AfterLookup(now);
}

void Generation::OnCheckpoint(MetaCall call, absl::StatusOr<CheckpointRead> read, MonoTime now) {
  if (!checkpoints_.has_value()) return;
  checkpoints_->planner().OnCheckpoint(call, std::move(read), now);
  AfterLookup(now);
}

void Generation::OnFragment(MetaCall call, const absl::StatusOr<FoundFragment>& found,
                            MonoTime now) {
  if (!checkpoints_.has_value()) return;
  if (found.ok()) checkpoints_->Granted(found->lease_ttl, now);
  checkpoints_->repair().OnFragment(call, found);
  AfterRepair(now);
}

void Generation::OnReserved(MetaCall call, const absl::StatusOr<Reservation>& reserved,
                            MonoTime now) {
  if (!checkpoints_.has_value()) return;
  if (reserved.ok()) checkpoints_->Granted(reserved->ttl, now);
  checkpoints_->saves().OnReserved(call, reserved);
  PumpSaves();
  CheckHeldFrames(now);
}

// Sends what waited for a reservation, once there is none to wait for or the wait is over.
void Generation::CheckHeldFrames(MonoTime now) {
  if (held_until_ == absl::InfiniteDuration()) return;
  if (now < held_until_ && checkpoints_->saves().reserving()) return;
  held_until_ = absl::InfiniteDuration();
  if (phase_ == Phase::kClosing) {
    SendClose();
  } else if (phase_ == Phase::kDecode && stream_open_ && !step_in_flight_ && reading_) {
    NextStep(now);
  }
}

// An access postpones the end of what the other hops hold while one of them is waited for.
void Generation::TouchOrphans(MonoTime now) {
  if (now < touch_at_) return;
  const bool waits = phase_ == Phase::kWaitingForRoute || phase_ == Phase::kRepair;
  if (!waits || state_hops_.empty() || !checkpoints_.has_value()) {
    touch_at_ = absl::InfiniteDuration();
    return;
  }
  touch_at_ = now + checkpoints_->touch_interval();
  ProbeSessions touch{StreamAttempt{attempt_}, {}};
  for (const forward::HopRef& hop : state_hops_) {
    if (!hop.instance.is_zero()) touch.hops.push_back(hop);
  }
  Emit(std::move(touch));
}

}  // namespace kvmesh::router
