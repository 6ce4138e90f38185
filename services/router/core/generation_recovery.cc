// What a Generation does when something fails, and how it ends.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/limits.h"
#include "services/router/core/generation.h"

namespace kvmesh::router {
namespace {

constexpr size_t kSuspectsMax = 64;
// Hidden rows of a whole sequence travel in one message; this much of it is left for the rest of
// the frame.
constexpr uint64_t kFrameBytesBesidesHidden = 6u << 20;

constexpr absl::string_view kCachingDisabled = "caching_disabled";  // cause of a CACHE_MISS

enum class Failure { kBroken, kLostState, kHopGone, kRefused, kMismatch, kFinal };

Failure Classify(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  switch (status.code()) {
    case absl::StatusCode::kAborted:
      if (reason == reason::kCacheMiss || reason == reason::kSuperseded) return Failure::kLostState;
      return reason == reason::kDraining ? Failure::kHopGone : Failure::kBroken;
    case absl::StatusCode::kFailedPrecondition:
      return reason == reason::kWrongInstance || reason == reason::kWrongLayers
                 ? Failure::kHopGone
                 : Failure::kMismatch;
    case absl::StatusCode::kResourceExhausted:
      return RetryDelayOf(status).has_value() ? Failure::kRefused : Failure::kFinal;
    case absl::StatusCode::kInvalidArgument:
      return Failure::kFinal;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      // Without a reason it is the transport's word for a connection that was reset.
      return reason.empty() ? Failure::kMismatch : Failure::kFinal;
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
      return Failure::kMismatch;
    default:  // OK without a Close, UNAVAILABLE, CANCELLED, DEADLINE_EXCEEDED, DATA_LOSS: the chain
              // is broken
      return Failure::kBroken;
  }
}

uint64_t SplitMix64(uint64_t* state) {  // Vigna's splitmix64
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

absl::string_view EventName(EventKind kind) {
  switch (kind) {
    case EventKind::kCacheMiss:
      return "cache miss";
    case EventKind::kReprefill:
      return "re-prefill";
    case EventKind::kReplan:
      return "new route";
    case EventKind::kLinkRetry:
      return "link retry";
    case EventKind::kRefused:
      return "no room";
    case EventKind::kWatchdog:
      return "watchdog";
    case EventKind::kRepair:
      return "repair";
  }
  return "unknown";
}

void Generation::AskRoute(MonoTime now) {
  ask_route_at_ = absl::InfiniteDuration();
  route_asked_ = true;
  waits_for_room_ = false;
  suspects_.erase(std::remove_if(suspects_.begin(), suspects_.end(),
                                 [now](const Suspect& suspect) { return suspect.until <= now; }),
                  suspects_.end());
  RouteRequest request{.pin = pin_,
                       .stateless = spec_.stateless || stateless_for_good_,
                       .tenant_salt = spec_.tenant->salt};
  for (const Suspect& suspect : suspects_) request.avoid.push_back(suspect.hop);
  Emit(NeedRoute{std::move(request)});
}

void Generation::WaitThenAskRoute(absl::Duration delay, MonoTime now) {
  phase_ = Phase::kWaitingForRoute;
  if (checkpoints_.has_value() && !state_hops_.empty()) {
    touch_at_ = std::min(touch_at_, now + checkpoints_->touch_interval());
  }
  if (delay <= absl::ZeroDuration()) return AskRoute(now);
  ask_route_at_ = now + delay;
}

// The first re-plan is at once, later ones after growing delays, until a token comes.
void Generation::Replan(const absl::Status& cause, MonoTime now) {
  ++stats_.replans;
  Emit(Event{EventKind::kReplan, std::string(cause.message())});
  route_error_ = absl::UnavailableError(absl::StrCat("no route holds: ", cause.message()));
  if (waits_in_row_ > 0) return WaitThenAskRoute(Backoff(), now);
  ++waits_in_row_;
  WaitThenAskRoute(absl::ZeroDuration(), now);
}

absl::Duration Generation::Backoff() {
  const uint32_t doublings = std::min<uint32_t>(waits_in_row_++, 16);
  const absl::Duration delay =
      std::min(limits_.backoff_first * (int64_t{1} << doublings), limits_.backoff_max);
  const double unit = static_cast<double>(SplitMix64(&jitter_state_) >> 11) * 0x1.0p-53;
  return delay * (0.75 + 0.5 * unit);
}

void Generation::OnRoute(absl::StatusOr<RoutePlan> route, MonoTime now) {
  if (over() || !route_asked_) return;
  route_asked_ = false;
  if (route.ok() && route->hops.empty()) route = absl::InternalError("an empty route");
  if (route.ok()) {
    route_ = *std::move(route);
    route_error_ = absl::OkStatus();
    if (!pin_.has_value()) pin_ = route_.Pin();
    return Run(now);
  }
  const absl::Status& error = route.status();
  const bool mismatch = error.code() == absl::StatusCode::kFailedPrecondition;
  if (!absl::IsUnavailable(error) && !(mismatch && mismatches_in_row_ < limits_.mismatches_max)) {
    return Finish(error, FinishReason::kNone, now);
  }
  if (mismatch) ++mismatches_in_row_;
  route_error_ = error;
  WaitThenAskRoute(Backoff(), now);
}

void Generation::OnShardsChanged(MonoTime now) {
  if (phase_ != Phase::kWaitingForRoute || route_asked_ || route_error_.ok()) return;
  AskRoute(now);
}

void Generation::AddSuspect(const forward::HopRef& hop, MonoTime now) {
  const HopKey key{hop.address, hop.instance};
  for (Suspect& suspect : suspects_) {
    if (suspect.hop == key) {
      suspect.until = now + limits_.suspect_time;
      return;
    }
  }
  if (suspects_.size() >= kSuspectsMax) suspects_.erase(suspects_.begin());
  suspects_.push_back({key, now + limits_.suspect_time});
}

// The hop that an error's metadata names; without any, the first one: the network between it and
// the router failed.
void Generation::AddSuspectNamedBy(const absl::Status& cause, MonoTime now) {
  const std::optional<ErrorInfo> info = ErrorInfoOf(cause);
  if (!info.has_value()) return AddSuspect(route_.hops[0], now);
  if (const auto address = info->metadata.find("address"); address != info->metadata.end()) {
    for (const forward::HopRef& hop : route_.hops) {
      if (hop.address == address->second) return AddSuspect(hop, now);
    }
  }
  const auto index_text = info->metadata.find("hop");
  uint32_t index = 0;
  if (index_text != info->metadata.end() && absl::SimpleAtoi(index_text->second, &index) &&
      index < route_.hops.size()) {
    AddSuspect(route_.hops[index], now);
  }
}

// InvalidArgument: the sequence, grown to max_tokens, does not fit one frame.
absl::Status Generation::CheckStatelessLength() const {
  const uint64_t row_bytes = uint64_t{4} * std::max<uint32_t>(route_.hidden_size, 1);
  const uint64_t by_bytes = (limits::kMessageBytesMax - kFrameBytesBesidesHidden) / row_bytes;
  const uint64_t tokens_max = route_.hops.size() > 1
                                  ? std::min<uint64_t>(by_bytes, limits::kHistoryTokensMax)
                                  : limits::kHistoryTokensMax;
  const uint64_t wanted =
      std::max<uint64_t>(history_.size(), prompt_tokens_ + spec_.max_tokens - 1);
  if (wanted <= tokens_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("prompt and output of ", wanted, " tokens; without a cache a route of ",
                   route_.hops.size(), " shards carries at most ", tokens_max));
}

void Generation::OnStreamEnd(StreamAttempt attempt, const absl::Status& status, MonoTime now) {
  if (!IsCurrent(attempt)) return;
  stream_open_ = false;
  step_in_flight_ = false;
  if (checkpoints_.has_value()) checkpoints_->saves().OnStreamEnd();
  if (phase_ == Phase::kClosing) return EndClosing(/*chain_ended=*/status.ok());
  held_until_ = absl::InfiniteDuration();
  switch (Classify(status)) {
    case Failure::kBroken:
      return OnBroken(status, now);
    case Failure::kLostState:
      return OnLostState(status, now);
    case Failure::kHopGone:
      AddSuspectNamedBy(status, now);
      return Replan(status, now);
    case Failure::kRefused:
      return OnRefused(*RetryDelayOf(status), now);
    case Failure::kMismatch:
      return OnMismatch(status, now);
    case Failure::kFinal:
      return Finish(status, FinishReason::kNone, now);
  }
}

// In decode the first break is taken for a lost link: the hops keep the state for a retry of the
// same step. A prefill that stopped half-way left nothing to go on from.
void Generation::OnBroken(const absl::Status& status, MonoTime now) {
  const bool can_retry = route_.stateless || !state_hops_.empty();
  if (can_retry && breaks_in_row_++ == 0) {
    ++stats_.link_retries;
    Emit(Event{EventKind::kLinkRetry, std::string(status.message())});
    return Run(now);
  }
  AddSuspectNamedBy(status, now);
  Replan(status, now);
}

// The first loss costs a prefill under the next epoch, at once. A hop that keeps no state at all,
// whatever it said of itself, makes the generation stateless.
void Generation::OnLostState(const absl::Status& status, MonoTime now) {
  const std::optional<ErrorInfo> info = ErrorInfoOf(status);
  if (info->reason == reason::kCacheMiss) {
    const auto found = info->metadata.find("cause");
    const std::string cause = found == info->metadata.end() ? "unknown" : found->second;
    ++stats_.cache_misses;
    Emit(Event{EventKind::kCacheMiss, cause});
    if (OnFailedRestore(*info, now)) return;
    if (cause == kCachingDisabled) stateless_for_good_ = route_.stateless = true;
    MarkLost(*info);
    if (state_hops_.empty()) reprefill_due_ = true;
  } else {
    state_hops_.clear();
  }
  if (losses_in_row_++ == 0) return Run(now);
  AddSuspectNamedBy(status, now);
  waits_in_row_ = std::max(waits_in_row_, 1u);
  Replan(status, now);
}

void Generation::OnRefused(absl::Duration delay, MonoTime now) {
  ++stats_.refusals;
  waits_for_room_ = true;
  Emit(Event{EventKind::kRefused, ""});
  const double unit = static_cast<double>(SplitMix64(&jitter_state_) >> 11) * 0x1.0p-53;
  delay = std::clamp(delay, limits_.backoff_first, limits_.backoff_max);
  WaitThenAskRoute(delay * (1.0 + 0.25 * unit), now);
}

void Generation::OnMismatch(const absl::Status& status, MonoTime now) {
  if (++mismatches_in_row_ > limits_.mismatches_max) {
    return Finish(status, FinishReason::kNone, now);
  }
  AddSuspectNamedBy(status, now);
  Replan(status, now);
}

void Generation::OnBadAnswer(const std::string& what, MonoTime now) {
  CutStream();
  state_hops_.clear();
  OnMismatch(absl::InternalError(absl::StrCat("the chain gave ", what)), now);
}

void Generation::CutStream() {
  if (stream_open_) {
    Emit(EndStream{StreamAttempt{attempt_}});
    if (checkpoints_.has_value()) checkpoints_->saves().OnStreamEnd();
  }
  stream_open_ = false;
  step_in_flight_ = false;
  held_until_ = absl::InfiniteDuration();
}

absl::Duration Generation::WatchdogLimit() const {
  if (step_times_.empty()) return limits_.step_watchdog_min;
  std::vector<absl::Duration> times = step_times_;
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return std::max(limits_.step_watchdog_min, 20 * *middle);
}

MonoTime Generation::WatchdogTime() const {
  if (!stream_open_ || !step_in_flight_) return absl::InfiniteDuration();
  const MonoTime cap = progress_at_ + limits_.step_wait_max;
  if (!probes_.empty()) return cap;
  return std::min(
      cap, probe_at_ == absl::InfiniteDuration() ? progress_at_ + WatchdogLimit() : probe_at_);
}

void Generation::CheckWatchdog(MonoTime now) {
  if (now < WatchdogTime()) return;
  if (now >= progress_at_ + limits_.step_wait_max) {
    CutStream();
    state_hops_.clear();
    return Replan(
        absl::UnavailableError(absl::StrCat("no answer to step ", stats_.tokens, " within ",
                                            absl::FormatDuration(limits_.step_wait_max))),
        now);
  }
  probes_.assign(route_.hops.size(), std::nullopt);
  probe_at_ = now + WatchdogLimit();
  Emit(Event{EventKind::kWatchdog, ""});
  Emit(ProbeSessions{StreamAttempt{attempt_}, route_.hops});
}

void Generation::OnSessionProbe(StreamAttempt attempt, size_t hop, bool answered, MonoTime now) {
  if (over() || !IsCurrent(attempt) || hop >= probes_.size()) return;
  probes_[hop] = answered;
  if (std::find(probes_.begin(), probes_.end(), std::nullopt) != probes_.end()) return;
  const std::vector<std::optional<bool>> results = std::exchange(probes_, {});
  // An answer that came meanwhile shows that the chain lives, whatever a probe met.
  if (probe_at_ == absl::InfiniteDuration()) return;
  std::string silent;
  for (size_t i = 0; i < results.size(); ++i) {
    if (*results[i]) continue;
    AddSuspect(route_.hops[i], now);
    absl::StrAppend(&silent, silent.empty() ? "" : ", ", route_.hops[i].address);
  }
  if (silent.empty()) return;
  CutStream();
  Replan(absl::UnavailableError(absl::StrCat("no sign of life from ", silent)), now);
}

MonoTime Generation::GiveUpTime() const {
  if (phase_ != Phase::kWaitingForRoute || route_error_.ok()) return spec_.deadline;
  // Early enough that the reason reaches the client before its own deadline does.
  const absl::Duration margin =
      std::min(absl::Milliseconds(500), (spec_.deadline - started_at_) / 10);
  return spec_.deadline - margin;
}

void Generation::Finish(const absl::Status& status, FinishReason reason, MonoTime now) {
  held_until_ = absl::InfiniteDuration();
  const bool saving = ReserveFinish(status);
  if (checkpoints_.has_value()) checkpoints_->StopLooking();
  if (!stream_open_) {
    EndClosing(/*chain_ended=*/false);
  } else {
    phase_ = Phase::kClosing;
    close_by_ = now + limits_.close_wait_max;
    if (saving) {
      held_until_ = now + checkpoints_->finish_hold_max();
    } else {
      SendClose();
    }
  }
  Emit(Done{status, reason});
}

// After the saves that may still go: a reservation that comes later is of no use.
void Generation::SendClose() {
  if (checkpoints_.has_value()) checkpoints_->saves().CancelUnsent();
  Emit(SendFrame{StreamAttempt{attempt_}, forward::Close{forward::Disposition::kDrop}});
}

void Generation::EndClosing(bool chain_ended) {
  if (!chain_ended) DropEverywhere();
  if (checkpoints_.has_value()) checkpoints_->saves().CancelUnsent();
  held_until_ = absl::InfiniteDuration();
  phase_ = Phase::kFinished;
}

void Generation::DropEverywhere() {
  if (epoch_ == 0 || route_.stateless) return;
  for (const forward::HopRef& hop : route_.hops) {
    Emit(DropSession{hop, spec_.session, SessionEpoch{epoch_}});
  }
}

}  // namespace kvmesh::router
