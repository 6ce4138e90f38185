#include "services/router/core/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/limits.h"

namespace kvmesh::router {
namespace {

constexpr size_t kStepTimesKept = 32;

}  // namespace

absl::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kIdle:
      return "queued";
    case Phase::kWaitingForRoute:
      return "waiting for a route";
    case Phase::kLookup:
      return "looking for a checkpoint";
    case Phase::kRepair:
      return "waiting for a fragment";
    case Phase::kPrefill:
      return "prefill";
    case Phase::kDecode:
      return "decode";
    case Phase::kClosing:
      return "closing";
    case Phase::kFinished:
      return "finished";
  }
  return "unknown";
}

Generation::Generation(GenerationSpec spec, GenerationLimits limits, TokenSink& sink,
                       Retokenizer retokenize, const CheckpointSetup* checkpoints)
    : spec_(std::move(spec)),
      limits_(limits),
      sink_(sink),
      retokenize_(std::move(retokenize)),
      history_(spec_.prompt),
      prompt_tokens_(history_.size()),
      ids_known_(history_.size()),
      jitter_state_(spec_.jitter_seed) {
  if (spec_.stateless) {
    reuse_.cause = "disabled: stateless";
  } else if (!spec_.checkpoints.off_cause.empty() || checkpoints == nullptr) {
    reuse_.cause = spec_.checkpoints.off_cause.empty() ? "disabled: no checkpoints"
                                                       : spec_.checkpoints.off_cause;
  } else {
    checkpoints_.emplace(*checkpoints, spec_.checkpoints, spec_.session, effects_);
  }
}

Effects Generation::TakeEffects() {
  return std::exchange(effects_, {});
}

void Generation::Start(MonoTime now) {
  if (phase_ != Phase::kIdle) return;
  started_at_ = now;
  WaitThenAskRoute(absl::ZeroDuration(), now);
}

// Starts the current step on route_: where its hops hold the state, by feeding the newest id again
// (they answer from their last output or run it), where some of them do, after a repair; else by a
// prefill of everything that is not stored, under a new epoch.
void Generation::Run(MonoTime now) {
  restore_.clear();
  repairing_ = false;
  if (checkpoints_.has_value()) {
    checkpoints_->StopLooking();
    checkpoints_->SetRoute(route_);
    if (stats_.tokens == 0) {
      UseOwnPrompt();
      reuse_ = {.cause = "disabled: the shards keep no checkpoints"};
    }
  }
  if (route_.stateless) {
    const absl::Status fits = CheckStatelessLength();
    if (!fits.ok()) return Finish(fits, FinishReason::kNone, now);
    epoch_ = std::max<uint64_t>(epoch_, 1);
    OpenNewStream(now);
    return SendWholeSequence(now);
  }
  if (!state_hops_.empty() && state_hops_ == route_.hops) {
    OpenNewStream(now);
    return SendDecode(now);
  }
  if (BeginRepair(now)) return;
  state_hops_.clear();
  LookUpOrPrefill(now);
}

// `choice`: what the hops load first, or null.
void Generation::StartPrefill(const RestoreChoice* choice, MonoTime now) {
  ++epoch_;
  if (prefill_work_done_ && pieces_.empty()) reprefill_due_ = true;
  prefill_sent_ = choice == nullptr ? 0 : choice->restore_tokens;
  chunks_in_flight_ = 0;
  restore_.clear();
  if (choice != nullptr) {
    for (uint32_t hop = 0; hop < choice->hop_slabs.size(); ++hop) {
      restore_.push_back({.hop_index = hop,
                          .slabs = choice->hop_slabs[hop],
                          .tokens = choice->restore_tokens,
                          .last_step = stats_.tokens});
    }
  }
  if (UsesCheckpoints() && stats_.tokens == 0) checkpoints_->SaveCold(history_, prefill_sent_);
  OpenNewStream(now);
  if (choice != nullptr && choice->full_hit) return SendFullHit(now);
  PumpPrefill(now);
}

void Generation::OpenNewStream(MonoTime now) {
  ++attempt_;
  stream_open_ = true;
  probes_.clear();
  probe_at_ = absl::InfiniteDuration();
  forward::Open open{
      .session = spec_.session,
      .epoch = SessionEpoch{epoch_},
      .attempt = StreamAttempt{attempt_},
      .hops = route_.hops,
      .hop_index = 0,
      .cache_namespace = route_.cache_namespace,
      .required_features = {},
      .history = history_,
      .prompt_tokens = static_cast<uint32_t>(prompt_tokens_),
      .sampling = spec_.sampling,
      .restore = restore_,
      .reserve_tokens = std::nullopt,
      .tenant = spec_.tenant->name,
      .traceparent = spec_.traceparent,
  };
  restores_open_ = restore_.size();
  if (UsesCheckpoints()) open.required_features.push_back(forward::kCheckpointsFeature);
  if (!route_.stateless) open.reserve_tokens = prompt_tokens_ + spec_.max_tokens;
  Emit(OpenStream{StreamAttempt{attempt_}, std::move(open)});
}

void Generation::PumpPrefill(MonoTime now) {
  phase_ = Phase::kPrefill;
  const size_t chunk = limits::ChunkTokens(route_.hidden_size);
  while (prefill_sent_ < history_.size() && chunks_in_flight_ < limits::kPrefillCredit) {
    size_t end = std::min(history_.size(), prefill_sent_ + chunk);
    if (UsesCheckpoints()) {
      end = std::min<size_t>(end, checkpoints_->saves().NextEdge(prefill_sent_).value_or(end));
    }
    Emit(SendFrame{StreamAttempt{attempt_},
                   forward::Compute{
                       .cache_mode = forward::CacheMode::kPrefill,
                       .past_len = prefill_sent_,
                       .layers = route_.hops[0].layers,
                       .step = stats_.tokens,
                       .tokens = {history_.begin() + static_cast<ptrdiff_t>(prefill_sent_),
                                  history_.begin() + static_cast<ptrdiff_t>(end)},
                       .prefix_digest = digester_.At(history_, prefill_sent_),
                       .want_logits = end == history_.size(),
                   }});
    prefill_sent_ = end;
    ++chunks_in_flight_;
    StepSent(now);
    PumpSaves();
  }
}

void Generation::SendDecode(MonoTime now) {
  phase_ = Phase::kDecode;
  const size_t past_len = history_.size() - 1;
  Emit(SendFrame{StreamAttempt{attempt_}, forward::Compute{
                                              .cache_mode = forward::CacheMode::kDecode,
                                              .past_len = past_len,
                                              .layers = route_.hops[0].layers,
                                              .step = stats_.tokens,
                                              .tokens = {history_.back()},
                                              .prefix_digest = digester_.At(history_, past_len),
                                              .want_logits = true,
                                          }});
  StepSent(now);
  PumpSaves();
}

void Generation::SendWholeSequence(MonoTime now) {
  phase_ = stats_.tokens == 0 ? Phase::kPrefill : Phase::kDecode;
  Emit(SendFrame{StreamAttempt{attempt_}, forward::Compute{
                                              .cache_mode = forward::CacheMode::kStateless,
                                              .layers = route_.hops[0].layers,
                                              .step = stats_.tokens,
                                              .tokens = history_,
                                              .want_logits = true,
                                          }});
  StepSent(now);
}

void Generation::StepSent(MonoTime now) {
  step_in_flight_ = true;
  step_sent_at_ = now;
  progress_at_ = now;
}

void Generation::OnAnswer(StreamAttempt attempt, const forward::Answer& answer, MonoTime now) {
  if (!IsCurrent(attempt)) return;
  if (const auto* state = std::get_if<forward::SaveState>(&answer)) {
    if (checkpoints_.has_value()) checkpoints_->saves().OnSaveState(*state);
    return;
  }
  if (over()) return;
  progress_at_ = now;
  probe_at_ = absl::InfiniteDuration();
  if (const auto* opened = std::get_if<forward::Opened>(&answer)) return OnOpened(*opened);
  if (std::holds_alternative<forward::Ack>(answer)) return OnAck(now);
  if (const auto* output = std::get_if<forward::Output>(&answer)) return OnOutput(*output, now);
}

void Generation::OnAck(MonoTime now) {
  if (phase_ != Phase::kPrefill || route_.stateless || chunks_in_flight_ == 0) return;
  --chunks_in_flight_;
  prefill_work_done_ = true;
  PumpPrefill(now);
}

void Generation::OnOutput(const forward::Output& output, MonoTime now) {
  if (!step_in_flight_ || output.step != stats_.tokens) {
    return OnBadAnswer(absl::StrCat("an answer to step ", output.step, " while step ",
                                    stats_.tokens, step_in_flight_ ? " runs" : " is not sent"),
                       now);
  }
  const bool prefilling = phase_ == Phase::kPrefill && !route_.stateless;
  if (prefilling && prefill_sent_ < history_.size()) {
    return OnBadAnswer("an answer before the prompt was complete", now);
  }
  step_in_flight_ = false;
  OnRestored();
  repairs_in_row_ = 0;
  if (std::exchange(repairing_, false)) {
    ++stats_.repairs;
    Emit(Event{EventKind::kRepair, ""});
  }
  if (std::exchange(reprefill_due_, false)) {
    ++stats_.reprefills;
    Emit(Event{EventKind::kReprefill, ""});
  }
  if (prefilling) {
    prefill_work_done_ = true;
  } else {
    if (step_times_.size() < kStepTimesKept) step_times_.emplace_back();
    step_times_[step_times_next_++ % kStepTimesKept] = now - step_sent_at_;
  }
  forward::Output token = output;
  const absl::Status appended = AppendToken(&token);
  if (!appended.ok()) return Finish(appended, FinishReason::kNone, now);
  waits_in_row_ = breaks_in_row_ = losses_in_row_ = mismatches_in_row_ = 0;
  ++stats_.tokens;

  const FinishReason reason = sink_.OnToken(token, now);
  if (reason != FinishReason::kNone) return Finish(absl::OkStatus(), reason, now);
  if (!token.token_id.has_value() && token.piece.empty()) {
    return Finish(absl::OkStatus(), FinishReason::kEos, now);  // nothing to go on with
  }
  if (stats_.tokens >= spec_.max_tokens) {
    return Finish(absl::OkStatus(), FinishReason::kLength, now);
  }
  phase_ = Phase::kDecode;
  if (!HoldStep(now) && reading_) NextStep(now);
}

// Internal: an id outside the vocabulary, or neither id nor text.
absl::Status Generation::AppendToken(forward::Output* output) {
  if (output->token_id.has_value()) {
    if (*output->token_id >= spec_.vocab_size) {
      return absl::InternalError(absl::StrCat("the tail answered with token id ", *output->token_id,
                                              " of a vocabulary of ", spec_.vocab_size));
    }
    history_.push_back(*output->token_id);
    ids_known_ = history_.size();
    pieces_.clear();
    if (!route_.stateless) state_hops_ = route_.hops;
    return absl::OkStatus();
  }
  if (output->piece.empty()) {
    if (output->finished) return absl::OkStatus();
    return absl::InternalError("the tail answered with neither a token id nor text");
  }
  if (!retokenize_) return absl::InternalError("the tail answered without a token id");
  pieces_.push_back(output->piece);
  absl::StatusOr<std::vector<uint32_t>> ids = retokenize_(pieces_);
  if (!ids.ok()) {
    return absl::InternalError(absl::StrCat("text of the tail: ", ids.status().message()));
  }
  const auto known_end = history_.begin() + static_cast<ptrdiff_t>(ids_known_);
  const size_t before = history_.size() - ids_known_;
  if (ids->size() == before + 1 && std::equal(known_end, history_.end(), ids->begin())) {
    output->token_id = ids->back();
  }
  history_.resize(ids_known_);
  history_.insert(history_.end(), ids->begin(), ids->end());
  digester_.Reset();
  state_hops_.clear();
  return absl::OkStatus();
}

void Generation::NextStep(MonoTime now) {
  if (!pieces_.empty()) {
    // Ids that came from text may change those before: everything runs again, as a new state. The
    // old one is of no use to anybody, and the next route may not come by to take its place.
    Emit(SendFrame{StreamAttempt{attempt_}, forward::Close{forward::Disposition::kDrop}});
    stream_open_ = false;
    return Run(now);
  }
  if (!route_.stateless) return SendDecode(now);
  const absl::Status fits = CheckStatelessLength();
  if (!fits.ok()) return Finish(fits, FinishReason::kNone, now);
  SendWholeSequence(now);
}

void Generation::SetReading(bool reading, MonoTime now) {
  if (over() || reading == reading_) return;
  reading_ = reading;
  unread_since_ = reading ? absl::InfiniteDuration() : now;
  const bool held = held_until_ != absl::InfiniteDuration();
  if (reading && !held && phase_ == Phase::kDecode && stream_open_ && !step_in_flight_) {
    NextStep(now);
  }
}

void Generation::Cancel(const absl::Status& status, MonoTime now) {
  if (!over()) Finish(status, FinishReason::kNone, now);
}

void Generation::Tick(MonoTime now) {
  if (phase_ == Phase::kFinished) return;
  if (checkpoints_.has_value()) {
    checkpoints_->Tick(now);
    CheckHeldFrames(now);
  }
  if (phase_ == Phase::kClosing) {
    if (now < close_by_) return;
    CutStream();
    return EndClosing(/*chain_ended=*/false);
  }
  if (now >= GiveUpTime()) {
    return Finish(
        route_error_.ok() ? absl::DeadlineExceededError("the deadline has passed") : route_error_,
        FinishReason::kNone, now);
  }
  if (now >= unread_since_ + limits_.unread_max) {
    return Finish(absl::CancelledError(absl::StrCat("the client has not read for ",
                                                    absl::FormatDuration(limits_.unread_max))),
                  FinishReason::kNone, now);
  }
  TouchOrphans(now);
  AfterLookup(now);
  AfterRepair(now);
  if (now >= ask_route_at_) return AskRoute(now);
  CheckWatchdog(now);
}

MonoTime Generation::NextTimer() const {
  if (phase_ == Phase::kFinished) return absl::InfiniteDuration();
  const MonoTime checkpoints =
      checkpoints_.has_value() ? checkpoints_->NextTimer() : absl::InfiniteDuration();
  if (phase_ == Phase::kClosing) return std::min({close_by_, held_until_, checkpoints});
  return std::min({GiveUpTime(), unread_since_ + limits_.unread_max, ask_route_at_, WatchdogTime(),
                   held_until_, touch_at_, checkpoints});
}

}  // namespace kvmesh::router
