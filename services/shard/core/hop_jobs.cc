// Which frame runs next, what it needs, and what becomes of its result.
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "services/shard/core/hop.h"
#include "services/shard/core/row_bytes.h"

namespace kvmesh::shard {
namespace {

// After so many decode steps in a row a prefill chunk that waits gets its turn.
constexpr uint32_t kDecodesInARowMax = 8;

bool IsChunk(const forward::Compute& compute) {
  return compute.cache_mode == forward::CacheMode::kPrefill;
}

// Appends the frame's ids to `history`, or checks them where it has them already.
absl::Status ExtendHistory(std::vector<uint32_t>& history, const forward::Compute& compute) {
  const uint64_t past_len = compute.past_len.value_or(0);
  if (past_len > history.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("past_len is ", past_len, "; history has ", history.size(), " ids"));
  }
  for (size_t i = 0; i < compute.tokens.size(); ++i) {
    const uint64_t position = past_len + i;
    if (position == history.size()) {
      history.push_back(compute.tokens[i]);
    } else if (history[position] != compute.tokens[i]) {
      return absl::InvalidArgumentError(absl::StrCat("tokens[", i, "] is ", compute.tokens[i],
                                                     "; history has ", history[position],
                                                     " at position ", position));
    }
  }
  return absl::OkStatus();
}

absl::Span<const float> LastRow(absl::Span<const float> rows, size_t count) {
  return count == 0 ? absl::Span<const float>() : rows.last(rows.size() / count);
}

}  // namespace

bool Hop::HasWork() const {
  return !running_.has_value() &&
         (Pick(/*decode=*/true).has_value() || Pick(/*decode=*/false).has_value());
}

std::optional<Job> Hop::NextJob(MonoTime now) {
  if (running_.has_value()) return std::nullopt;
  // Each round takes a frame from a queue or ends a stream.
  while (const std::optional<StreamId> id = Choose()) {
    std::optional<Job> job = Start(*id, now);
    if (job.has_value()) return job;
    Pump(*id, now);
    EndIfDrained(*id, now);
  }
  return std::nullopt;
}

// Decode steps go first, since somebody waits for each; sessions take turns.
std::optional<StreamId> Hop::Choose() {
  const std::optional<StreamId> decode = Pick(/*decode=*/true);
  const std::optional<StreamId> prefill = Pick(/*decode=*/false);
  const bool take_decode =
      decode.has_value() && (!prefill.has_value() || decodes_in_a_row_ < kDecodesInARowMax);
  decodes_in_a_row_ = take_decode ? decodes_in_a_row_ + 1 : 0;
  const std::optional<StreamId> id = take_decode ? decode : prefill;
  if (id.has_value()) last_picked_[take_decode ? 1 : 0] = *id;
  return id;
}

std::optional<StreamId> Hop::Pick(bool decode) const {
  const auto may_run = [decode](const Stream& stream) {
    if (stream.queue.empty() || stream.waits != Stream::Waits::kNothing) return false;
    const auto* compute = std::get_if<forward::Compute>(&stream.queue.front().frame);
    if (compute == nullptr) return false;
    if ((compute->cache_mode == forward::CacheMode::kDecode) != decode) return false;
    if (!stream.next.has_value()) return true;
    return IsChunk(*compute) ? stream.down.chunks < limits::kPrefillCredit
                             : stream.down.steps() < limits::kDecodeCredit;
  };
  auto it = streams_.upper_bound(last_picked_[decode ? 1 : 0]);
  for (size_t i = 0; i < streams_.size(); ++i, ++it) {
    if (it == streams_.end()) it = streams_.begin();
    if (may_run(it->second)) return it->first;
  }
  return std::nullopt;
}

std::optional<Job> Hop::Start(StreamId id, MonoTime now) {
  Stream& stream = streams_.at(id);
  const absl::Duration waited = now - stream.queue.front().received;
  forward::Compute compute = std::get<forward::Compute>(std::move(stream.queue.front().frame));
  stream.queue.pop_front();
  stream.last_event = now;
  SessionEntry* entry = stream.stateful ? store_.Touch(stream.session, now) : nullptr;
  std::optional<HeldFacts> facts;
  if (entry != nullptr) facts = entry->Facts(IsTail(stream));
  const FrameVerdict verdict =
      JudgeFrame({.epoch = stream.epoch, .attempt = stream.attempt, .compute = &compute},
                 facts.has_value() ? &*facts : nullptr, options_.layers, options_.caching);
  if (verdict.action == FrameAction::kMiss) {
    End(id, Miss(stream, verdict.cause, compute, now), now);
    return std::nullopt;
  }
  if (verdict.action == FrameAction::kSuperseded) {
    ++counters_.superseded;
    End(id,
        WithErrorInfo(absl::AbortedError("a newer epoch or attempt is known"),
                      {.reason = std::string(reason::kSuperseded)}),
        now);
    return std::nullopt;
  }
  if (const absl::Status status = ExtendHistory(stream.history, compute); !status.ok()) {
    End(id, status, now);
    return std::nullopt;
  }
  if (verdict.action == FrameAction::kFullHit) ++counters_.full_hits;
  // A tail with nothing but the row samples from it: at a full hit, or a step that was restored.
  const bool from_row =
      IsTail(stream) && (verdict.action == FrameAction::kFullHit ||
                         (verdict.action == FrameAction::kReplay && !entry->last_answer));
  if (!from_row &&
      (verdict.action == FrameAction::kReplay || verdict.action == FrameAction::kFullHit)) {
    SettleFromStore(id, stream, std::move(compute), *entry, verdict.action, now);
    return std::nullopt;
  }
  Job job = MakeJob(id, stream, std::move(compute), verdict.action, entry);
  job.waited = waited;
  return job;
}

// A repeated step, or a full hit at a hop that is not the tail: the stored row or answer goes out,
// nothing runs.
void Hop::SettleFromStore(StreamId id, Stream& stream, forward::Compute compute,
                          SessionEntry& entry, FrameAction action, MonoTime now) {
  if (action == FrameAction::kReplay) {
    ++counters_.replays;
    const std::vector<float> row = entry.last_row;
    FinishFrame(id, stream, std::move(compute), row, entry.last_answer);
    return;
  }
  entry.last_step = compute.step;
  FinishFrame(id, stream, std::move(compute), {}, std::nullopt);
}

Job Hop::MakeJob(StreamId id, Stream& stream, forward::Compute compute, FrameAction action,
                 SessionEntry* entry) {
  Job job{.stream = id,
          .stateful = action != FrameAction::kStateless,
          .fresh = action == FrameAction::kFresh,
          .from_row = action == FrameAction::kFullHit || action == FrameAction::kReplay,
          .sample = IsTail(stream) && compute.want_logits,
          .sampling = stream.sampling,
          .prompt_tokens = stream.prompt_tokens,
          .cancel = std::make_shared<std::atomic<bool>>(false)};
  if (job.fresh) store_.ForgetState(entry, MissCause::kPoisoned);
  if (job.from_row) {
    job.stored_row = entry->last_row;
  } else if (job.stateful && !job.fresh) {
    job.state = std::exchange(entry->state, {});
  }
  if (job.sample) job.history = std::move(stream.history);
  running_ = Running{.stream = id,
                     .session = stream.session,
                     .entry_serial = job.stateful ? entry->serial : 0,
                     .epoch = stream.epoch,
                     .decode = compute.cache_mode == forward::CacheMode::kDecode,
                     .from_row = job.from_row,
                     .fresh = job.fresh,
                     .cancel = job.cancel};
  job.frame = std::move(compute);
  return job;
}

void Hop::OnJobDone(StreamId id, JobResult result, MonoTime now) {
  // A result of a job that is not out is the caller's bug, and would corrupt the state of another
  // session.
  if (!running_.has_value() || running_->stream != id) std::abort();
  const Running run = *std::exchange(running_, std::nullopt);
  SessionEntry* entry = run.entry_serial == 0 ? nullptr : store_.Find(run.session);
  if (entry != nullptr && entry->serial != run.entry_serial) entry = nullptr;
  if (result.status.code() == absl::StatusCode::kCancelled) ++counters_.steps_cancelled;
  if (result.status.ok()) {
    ++counters_.frames_run;
    counters_.tokens_run += result.frame.tokens.size();
    if (entry != nullptr) StoreResult(run, result, std::move(result.state), entry);
  } else if (entry != nullptr) {
    store_.ForgetState(entry, MissCause::kPoisoned);
  }
  if (entry != nullptr && entry->phase != SessionPhase::kLive && draining_) SaveLeaving(entry);
  // A newer stream's save may have waited for the state.
  if (auto it = by_session_.find(run.session); it != by_session_.end() && it->second != id) {
    Pump(it->second, now);
  }
  Stream* stream = Find(id);
  if (stream == nullptr || stream->closing) return;
  stream->last_event = now;
  if (stream->dropping) return Pump(id, now);
  if (!result.status.ok()) {
    End(id, JobFailure(*stream, result.status), now);
    return;
  }
  if (IsTail(*stream) && result.frame.want_logits) stream->history = std::move(result.history);
  FinishFrame(id, *stream, std::move(result.frame), result.rows, std::move(result.output));
  Pump(id, now);
  EndIfDrained(id, now);
}

void Hop::StoreResult(const Running& run, const JobResult& result, SessionState state,
                      SessionEntry* entry) {
  const forward::Compute& frame = result.frame;
  entry->last_step = frame.step;
  entry->last_answer = result.output;
  if (run.from_row) return;
  entry->has_state = true;
  entry->state = std::move(state);
  entry->state_epoch = run.epoch;
  entry->Extend(frame.tokens);
  const absl::Span<const float> last_row = LastRow(result.rows, frame.tokens.size());
  entry->last_row.assign(last_row.begin(), last_row.end());
  if (IsChunk(frame) && frame.want_logits) {
    entry->prefill_end = entry->held;
    entry->prefill_row = entry->last_row;
  }
  store_.SetBytes(entry, result.state_bytes);
}

// Sends on and answers what a frame that has run, or needed no running, leads to.
void Hop::FinishFrame(StreamId id, Stream& stream, forward::Compute frame,
                      absl::Span<const float> rows, std::optional<forward::Output> output) {
  const bool chunk = IsChunk(frame);
  const forward::Ack ack{.step = frame.step, .past_len = frame.past_len.value_or(0)};
  if (stream.next.has_value()) {
    if (chunk) ++stream.down.chunks;
    if (frame.want_logits) stream.down.outputs.push_back(!chunk);
    frame.layers = stream.next->layers;
    frame.hidden = BytesOf(rows);
    SendNext(id, std::move(frame));
  }
  if (chunk) {
    --stream.up.chunks;
    Tell(id, ack);
  }
  if (!stream.next.has_value() && output.has_value()) {
    stream.up.outputs.pop_front();
    Tell(id, *std::move(output));
  }
}

absl::Status Hop::Miss(const Stream& stream, MissCause cause, const forward::Compute& compute,
                       MonoTime now) {
  ++counters_.misses[static_cast<size_t>(cause)];
  const std::optional<SessionView> view = store_.View(stream.session, now);
  const uint64_t held = view.has_value() ? view->held : 0;
  const uint64_t wanted = compute.past_len.value_or(0);
  return WithErrorInfo(absl::AbortedError(absl::StrCat("cache miss at hop ", stream.hop_index, ": ",
                                                       MissCauseName(cause), " (", held,
                                                       " tokens held, ", wanted, " wanted)")),
                       {.reason = std::string(reason::kCacheMiss),
                        .metadata = {{"cause", std::string(MissCauseName(cause))},
                                     {"hop", absl::StrCat(stream.hop_index)},
                                     {"held", absl::StrCat(held)},
                                     {"wanted", absl::StrCat(wanted)}}});
}

absl::Status Hop::JobFailure(const Stream& stream, const absl::Status& status) {
  const std::string where = absl::StrCat("hop ", stream.hop_index, ": ");
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    return WithRetryDelay(
        WithErrorInfo(absl::ResourceExhaustedError(absl::StrCat(where, status.message())),
                      {.reason = std::string(reason::kNoRoom)}),
        options_.store.retry_delay);
  }
  const std::string message(status.message());
  const bool sampler =
      message == "nan_logits" || message == "inf_logits" || message == "no_candidates";
  if (sampler) ++counters_.bad_logits;
  return WithErrorInfo(absl::InternalError(absl::StrCat(where, message)),
                       {.reason = std::string(sampler ? reason::kBadLogits : reason::kEngineFailed),
                        .metadata = {{"cause", message}, {"hop", absl::StrCat(stream.hop_index)}}});
}

}  // namespace kvmesh::shard
