// How streams end, and what comes back from the next hop.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "services/shard/core/hop.h"
#include "services/shard/core/save_slab.h"

namespace kvmesh::shard {

void Hop::OnUpLost(StreamId id, MonoTime now) {
  Stream* stream = Find(id);
  if (stream == nullptr) return;
  if (stream->closing) {
    // The Close is on its way down; cancelling the call could overtake it.
    stream->up_gone = true;
    return;
  }
  Remove(id, Below::kCancel, now);
}

void Hop::End(StreamId id, const absl::Status& status, MonoTime now, Below below) {
  Stream* stream = Find(id);
  if (stream == nullptr) return;
  if (!stream->up_gone) effects_.emplace_back(EndUp{id, status});
  Remove(id, below, now);
}

void Hop::Remove(StreamId id, Below below, MonoTime now) {
  Stream stream = std::move(streams_.at(id));
  streams_.erase(id);
  StopWaiting(id, stream);
  if (auto it = by_session_.find(stream.session); it != by_session_.end() && it->second == id) {
    by_session_.erase(it);
  }
  if (stream.next.has_value() && below == Below::kCancel) effects_.emplace_back(EndDown{id});
  if (stream.closing) return;
  if (IsRunning(id)) {
    // A decode step that runs may end: its answer serves the retry. Half a prefill serves nobody.
    CancelRunning(stream.session, /*also_decode=*/!stream.stateful);
  }
  const SessionEntry* entry = stream.stateful ? store_.Find(stream.session) : nullptr;
  if (entry == nullptr || entry->newest_attempt != stream.attempt) return;
  if (below == Below::kRefused && stream.admitted) {
    CancelRunning(stream.session, /*also_decode=*/true);
    store_.Erase(stream.session);
  } else {
    store_.Release(stream.session, SessionPhase::kOrphaned, now);
  }
  if (draining_) SaveResting();
}

void Hop::CancelRunning(const SessionId& session, bool also_decode) {
  if (running_.has_value() && running_->session == session && (also_decode || !running_->decode)) {
    running_->cancel->store(true, std::memory_order_relaxed);
  }
}

void Hop::OnDownAnswer(StreamId id, forward::Answer answer, MonoTime now) {
  Stream* stream = Find(id);
  if (stream == nullptr || !stream->next.has_value()) return;
  stream->last_event = now;
  if (!TakeDownAnswer(*stream, answer)) {
    End(id, WrapDown(*stream, absl::UnavailableError("an answer that nothing asked for")), now);
    return;
  }
  if (!std::holds_alternative<forward::Ack>(answer) && !stream->up_gone) {
    effects_.emplace_back(AnswerUp{id, std::move(answer)});
  }
  EndIfDrained(id, now);
}

// Books what the answer returns. False: it answers nothing.
bool Hop::TakeDownAnswer(Stream& stream, const forward::Answer& answer) {
  if (std::holds_alternative<forward::Ack>(answer)) {
    if (stream.down.chunks == 0) return false;
    --stream.down.chunks;
  } else if (std::holds_alternative<forward::Output>(answer)) {
    if (stream.down.outputs.empty() || stream.up.outputs.empty()) return false;
    stream.down.outputs.pop_front();
    stream.up.outputs.pop_front();
  } else if (std::holds_alternative<forward::Opened>(answer)) {
    if (stream.opened_behind == stream.hops_behind) return false;
    ++stream.opened_behind;
  } else {
    if (stream.save_states_due == 0) return false;
    --stream.save_states_due;
  }
  return true;
}

void Hop::OnDownEnd(StreamId id, const absl::Status& status, MonoTime now) {
  Stream* stream = Find(id);
  if (stream == nullptr || !stream->next.has_value()) return;
  if (stream->closing && status.ok()) {
    stream->down_ended = true;
    EndIfSettled(id, now);
    return;
  }
  const bool refused = stream->opened_behind < stream->hops_behind;
  End(id, WrapDown(*stream, status), now, refused ? Below::kRefused : Below::kEnded);
}

// The next hop's failure as this hop tells it: as it is when it says its cause itself or names what
// the caller did wrong, else as that hop's being unavailable.
absl::Status Hop::WrapDown(const Stream& stream, const absl::Status& status) const {
  if (ErrorInfoOf(status).has_value()) return status;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
      return status;
    default:
      break;
  }
  const forward::HopRef& next = *stream.next;
  const std::string what = status.ok() ? "it ended the stream" : status.ToString();
  return WithErrorInfo(absl::UnavailableError(absl::StrCat("hop ", stream.hop_index + 1, " at ",
                                                           next.address, ": ", what)),
                       {.reason = std::string(reason::kHopUnavailable),
                        .metadata = {{"hop", absl::StrCat(stream.hop_index + 1)},
                                     {"address", next.address},
                                     {"instance_id", next.instance.ToHex()}}});
}

// A stream ends only when whoever asked for saves has heard of all of them.
void Hop::EndIfSettled(StreamId id, MonoTime now) {
  const Stream* stream = Find(id);
  if (stream == nullptr || !stream->closing || saves_.size(id) > 0) return;
  if (IsTail(*stream) || stream->down_ended) End(id, absl::OkStatus(), now, Below::kEnded);
}

void Hop::Drain(MonoTime now) {
  draining_ = true;
  SaveResting();
  std::vector<StreamId> ids;
  for (const auto& [id, stream] : streams_) ids.push_back(id);
  for (const StreamId id : ids) EndIfDrained(id, now);
}

void Hop::EndIfDrained(StreamId id, MonoTime now) {
  const Stream* stream = Find(id);
  if (!draining_ || stream == nullptr || stream->closing) return;
  if (!stream->queue.empty() || IsRunning(id) || !stream->up.outputs.empty()) return;
  ErrorInfo info{.reason = std::string(reason::kDraining),
                 .metadata = {{"hop", absl::StrCat(stream->hop_index)}, {"held", "0"}}};
  if (SessionEntry* entry = store_.Find(stream->session); entry != nullptr) {
    info.metadata["held"] = absl::StrCat(entry->held);
    info.metadata["tokens_sha256"] = entry->tokens.Digest().ToHex();
    if (entry->has_state && options_.checkpoints.fragments) {
      info.metadata["key"] =
          KeyOf(entry->cache_namespace, entry->ids, *options_.vocabulary).ToHex();
      SaveLeaving(entry);
    }
  }
  End(id, WithErrorInfo(absl::AbortedError("this shard is draining"), info), now);
}

void Hop::Tick(MonoTime now) {
  store_.Expire(now);
  std::vector<std::pair<StreamId, absl::Status>> overdue;
  for (const auto& [id, stream] : streams_) {
    const absl::Duration silent = now - stream.last_event;
    if (stream.waits == Stream::Waits::kRoom &&
        now - stream.waits_since >= options_.checkpoints.evict_save_timeout) {
      overdue.emplace_back(id, NoRoomInTime());
    } else if (stream.closing && silent >= options_.close_wait_max &&
               (IsTail(stream) || stream.down_ended)) {
      overdue.emplace_back(id, absl::OkStatus());  // its saves go on
    } else if (stream.closing && silent >= options_.close_wait_max) {
      overdue.emplace_back(id, WrapDown(stream, absl::DeadlineExceededError("no end after Close")));
    } else if (!stream.closing && silent >= options_.stream_idle_max && !IsRunning(id)) {
      overdue.emplace_back(id, absl::DeadlineExceededError(absl::StrCat(
                                   "nothing came on the stream for ",
                                   absl::ToInt64Seconds(options_.stream_idle_max), " s")));
    }
  }
  for (const auto& [id, status] : overdue) End(id, status, now);
}

}  // namespace kvmesh::shard
