#include "services/shard/core/hop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/status_macros.h"
#include "services/shard/core/edge_checks.h"

namespace kvmesh::shard {
namespace {

constexpr size_t kQueuedSavesMax = 16;

// A machine-readable refusal names its hop, so that the router knows which one to do without.
absl::Status AtHop(const absl::Status& status, uint32_t hop_index) {
  std::optional<ErrorInfo> info = ErrorInfoOf(status);
  if (!info.has_value()) return status;
  info->metadata.try_emplace("hop", absl::StrCat(hop_index));
  return WithErrorInfo(status, *info);
}

}  // namespace

Hop::Hop(const HopOptions& options)
    : options_(options), store_(options.store), saves_(options.checkpoints) {}

uint32_t Hop::Stream::Outstanding::steps() const {
  return static_cast<uint32_t>(std::count(outputs.begin(), outputs.end(), true));
}

Hop::Stream* Hop::Find(StreamId id) {
  auto it = streams_.find(id);
  return it == streams_.end() ? nullptr : &it->second;
}

void Hop::OnFrame(StreamId id, forward::Frame frame, MonoTime now) {
  Stream* stream = Find(id);
  if (auto* open = std::get_if<forward::Open>(&frame)) {
    if (stream != nullptr) {
      End(id, absl::InvalidArgumentError("a second Open on one stream"), now);
    } else {
      OpenStream(id, std::move(*open), now);
    }
    return;
  }
  if (stream == nullptr) return;
  stream->last_event = now;
  if (stream->close_received) {
    End(id, absl::InvalidArgumentError("a frame after Close"), now);
  } else if (auto* compute = std::get_if<forward::Compute>(&frame)) {
    OnCompute(id, *stream, std::move(*compute), now);
  } else if (auto* close = std::get_if<forward::Close>(&frame)) {
    OnClose(id, *stream, *close, now);
  } else {
    const auto saves = std::count_if(stream->queue.begin(), stream->queue.end(), [](const auto& f) {
      return std::holds_alternative<forward::Save>(f.frame);
    });
    if (static_cast<size_t>(saves) >= kQueuedSavesMax) {
      End(id,
          absl::InvalidArgumentError(absl::StrCat("more than ", kQueuedSavesMax, " saves wait")),
          now);
      return;
    }
    stream->queue.push_back({std::get<forward::Save>(std::move(frame)), now});
    Pump(id, now);
  }
}

void Hop::OnBadFrame(StreamId id, const absl::Status& status, MonoTime now) {
  End(id, status, now);
}

void Hop::OpenStream(StreamId id, forward::Open open, MonoTime now) {
  const uint32_t hop_index = open.hop_index;
  absl::Status status = CheckOpen(open, options_);
  if (status.ok()) status = Accept(id, std::move(open), now);
  if (!status.ok()) effects_.emplace_back(EndUp{id, AtHop(status, hop_index)});
}

// Ends the session's older stream, or refuses the new one as stale.
absl::Status Hop::Supersede(const forward::Open& open, MonoTime now) {
  auto it = by_session_.find(open.session);
  if (it == by_session_.end()) return absl::OkStatus();
  const StreamId older_id = it->second;
  const Stream& older = streams_.at(older_id);
  absl::Status superseded =
      WithErrorInfo(absl::AbortedError(absl::StrCat("session ", open.session.ToHex(),
                                                    ": a newer epoch or attempt is known")),
                    {.reason = std::string(reason::kSuperseded)});
  ++counters_.superseded;
  if (open.epoch < older.epoch || open.attempt <= older.attempt) return superseded;
  End(older_id, superseded, now);
  return absl::OkStatus();
}

absl::Status Hop::Accept(StreamId id, forward::Open open, MonoTime now) {
  if (draining_) {
    return WithErrorInfo(absl::AbortedError("this shard is draining"),
                         {.reason = std::string(reason::kDraining),
                          .metadata = {{"hop", absl::StrCat(open.hop_index)}, {"held", "0"}}});
  }
  KVMESH_RETURN_IF_ERROR(Supersede(open, now));
  if (streams_.size() >= options_.streams_max) {
    return WithRetryDelay(
        WithErrorInfo(absl::ResourceExhaustedError(absl::StrCat("this shard has ", streams_.size(),
                                                                " streams open, its limit")),
                      {.reason = std::string(reason::kQueueFull)}),
        options_.store.retry_delay);
  }
  bool admitted = false;
  const bool stateful = open.reserve_tokens.has_value();
  if (options_.caching && open.reserve_tokens.has_value()) {
    const absl::Status status = store_.Open(open.session, open.epoch, open.attempt,
                                            *open.reserve_tokens, open.tenant, now, &admitted);
    if (ReasonOf(status) == reason::kSuperseded) ++counters_.superseded;
    KVMESH_RETURN_IF_ERROR(status);
    store_.Find(open.session)->cache_namespace = open.cache_namespace;
    SaveEvicted();
  }
  ++counters_.streams;
  Stream& stream = streams_[id];
  stream.session = open.session;
  stream.epoch = open.epoch;
  stream.attempt = open.attempt;
  stream.hop_index = open.hop_index;
  stream.hops_behind = open.hops.size() - 1;
  stream.stateful = stateful;
  stream.admitted = admitted;
  stream.trace = ParseTraceparent(open.traceparent).value_or(Trace());
  stream.sampling = std::make_shared<const forward::SamplingOptions>(open.sampling);
  stream.history = open.history;
  stream.prompt_tokens = open.prompt_tokens;
  stream.last_event = now;
  by_session_[open.session] = id;

  for (const forward::HopRestore& restore : open.restore) {
    if (restore.hop_index == open.hop_index) stream.restore = MakeRestoreJob(id, open, restore);
  }
  if (open.hops.size() > 1) {
    open.hops.erase(open.hops.begin());
    std::erase_if(open.restore, [&](const auto& r) { return r.hop_index == open.hop_index; });
    ++open.hop_index;
    stream.next = open.hops.front();
    effects_.emplace_back(OpenDown{id, *stream.next, std::move(open)});
  }
  Begin(id, now);
  return absl::OkStatus();
}

void Hop::OnCompute(StreamId id, Stream& stream, forward::Compute compute, MonoTime now) {
  const absl::Status status = CheckCompute(compute, stream.stateful, options_);
  if (!status.ok()) return End(id, AtHop(status, stream.hop_index), now);
  const bool chunk = compute.cache_mode == forward::CacheMode::kPrefill;
  if (chunk ? stream.up.chunks >= limits::kPrefillCredit
            : stream.up.steps() >= limits::kDecodeCredit) {
    return End(id,
               absl::InvalidArgumentError(absl::StrCat("more than ", limits::kPrefillCredit,
                                                       " prefill chunks or ", limits::kDecodeCredit,
                                                       " step without an answer")),
               now);
  }
  if (stream.up.outputs.size() > limits::kPrefillCredit + limits::kDecodeCredit) {
    return End(id, absl::InvalidArgumentError("too many frames wait for an Output"), now);
  }
  if (chunk) ++stream.up.chunks;
  if (compute.want_logits) stream.up.outputs.push_back(!chunk);
  stream.queue.push_back({std::move(compute), now});
}

void Hop::OnClose(StreamId id, Stream& stream, forward::Close close, MonoTime now) {
  stream.close_received = true;
  if (close.disposition == forward::Disposition::kKeep) {
    stream.queue.push_back({close, now});
    Pump(id, now);
    return;
  }
  // Compute frames that wait are cancelled, saves are not.
  std::erase_if(stream.queue, [](const QueuedFrame& queued) {
    return std::holds_alternative<forward::Compute>(queued.frame);
  });
  StopWaiting(id, stream);
  if (!stream.queue.empty() && IsComputing(stream.session) && running_->decode) {
    // A save needs the state that the step has on loan.
    stream.dropping = true;
    stream.queue.push_back({close, now});
    return;
  }
  // Half a prefill serves nobody, no save either.
  for (const QueuedFrame& queued : std::exchange(stream.queue, {})) {
    ExecuteSave(id, stream, std::get<forward::Save>(queued.frame));
  }
  ExecuteClose(id, stream, close, now);
}

void Hop::Tell(StreamId id, forward::Answer answer) {
  effects_.emplace_back(AnswerUp{id, std::move(answer)});
}

void Hop::SendNext(StreamId id, forward::Frame frame) {
  effects_.emplace_back(SendDown{id, std::move(frame)});
}

void Hop::ExecuteClose(StreamId id, Stream& stream, forward::Close close, MonoTime now) {
  if (stream.next.has_value()) SendNext(id, close);
  if (stream.stateful && options_.caching) {
    if (close.disposition == forward::Disposition::kDrop) {
      store_.RememberDropped(stream.session, stream.epoch, now);
      store_.Erase(stream.session);
    } else {
      store_.Release(stream.session, SessionPhase::kIdle, now);
    }
  }
  if (IsRunning(id)) CancelRunning(stream.session, /*also_decode=*/true);
  stream.closing = true;
  stream.last_event = now;
  by_session_.erase(stream.session);
  EndIfSettled(id, now);
}

// Whether the frame at the queue's head needs no compute and nothing that is out.
bool Hop::MayExecute(StreamId id, const Stream& stream) const {
  if (stream.queue.empty() || stream.closing || stream.waits != Stream::Waits::kNothing) {
    return false;
  }
  const auto& frame = stream.queue.front().frame;
  if (std::holds_alternative<forward::Save>(frame)) return !IsComputing(stream.session);
  return std::holds_alternative<forward::Close>(frame) && !IsRunning(id);
}

void Hop::Pump(StreamId id, MonoTime now) {
  Stream* stream = Find(id);
  while (stream != nullptr && MayExecute(id, *stream)) {
    const auto frame = std::move(stream->queue.front().frame);
    stream->queue.pop_front();
    if (const auto* save = std::get_if<forward::Save>(&frame)) {
      ExecuteSave(id, *stream, *save);
    } else {
      ExecuteClose(id, *stream, std::get<forward::Close>(frame), now);
      return;
    }
  }
}

bool Hop::DropSession(const SessionId& session, SessionEpoch epoch, MonoTime now) {
  const auto covers = [epoch](SessionEpoch e) { return epoch == SessionEpoch{0} || e <= epoch; };
  bool freed = false;
  SessionEpoch dropped = epoch;
  if (auto it = by_session_.find(session); it != by_session_.end()) {
    const StreamId id = it->second;
    const SessionEpoch stream_epoch = streams_.at(id).epoch;
    if (covers(stream_epoch)) {
      dropped = std::max(dropped, stream_epoch);
      freed = true;
      CancelRunning(session, /*also_decode=*/true);
      End(id,
          WithErrorInfo(
              absl::AbortedError(absl::StrCat("session ", session.ToHex(), " was dropped")),
              {.reason = std::string(reason::kSuperseded)}),
          now);
    }
  }
  if (SessionEntry* entry = store_.Find(session); entry != nullptr && covers(entry->newest_epoch)) {
    dropped = std::max(dropped, entry->newest_epoch);
    freed = true;
    CancelRunning(session, /*also_decode=*/true);
    store_.Erase(session);
  }
  if (dropped != SessionEpoch{0}) store_.RememberDropped(session, dropped, now);
  return freed;
}

std::optional<SessionView> Hop::GetSession(const SessionId& session, MonoTime now) {
  if (store_.Touch(session, now) == nullptr) return std::nullopt;
  return store_.View(session, now);
}

std::vector<SessionView> Hop::ListSessions(const std::optional<SessionId>& after, size_t count,
                                           MonoTime now) const {
  return store_.List(after, count, now);
}

size_t Hop::queued_frames() const {
  size_t queued = 0;
  for (const auto& [id, stream] : streams_) queued += stream.queue.size();
  return queued;
}

std::vector<Effect> Hop::TakeEffects() {
  SaveEvicted();
  return std::exchange(effects_, {});
}

}  // namespace kvmesh::shard
