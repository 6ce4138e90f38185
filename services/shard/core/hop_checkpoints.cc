// What a hop saves, and what it starts from.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "services/shard/core/hop.h"
#include "services/shard/core/restore_plan.h"
#include "services/shard/core/save_snapshot.h"

namespace kvmesh::shard {

// Forwarded before it is executed. What cannot be saved is said at once, so that the row's other
// slabs are given up.
void Hop::ExecuteSave(StreamId id, Stream& stream, const forward::Save& save) {
  if (stream.next.has_value()) {
    SendNext(id, save);
    stream.save_states_due += 2 * stream.hops_behind;  // STARTED, and how it ended
  }
  const auto target = std::find_if(save.targets.begin(), save.targets.end(), [&](const auto& t) {
    return t.first == stream.hop_index && !t.second.empty();
  });
  auto taken = TakeForSave(stream, save, target != save.targets.end());
  if (const auto* drop = std::get_if<SaveDrop>(&taken)) {
    saves_.CountDrop(save.reason, *drop);
    return Tell(id, forward::SaveState{.hop_index = stream.hop_index,
                                       .write_id = save.write_id,
                                       .state = forward::SaveState::State::kDropped,
                                       .cause = std::string(SaveDropName(*drop))});
  }
  Launch({.snapshot = std::get<StateSnapshot>(std::move(taken)),
          .reason = save.reason,
          .write_id = save.write_id,
          .store_address = target->second,
          .time_limit = options_.checkpoints.save_timeout,
          .trace = stream.trace},
         id);
}

std::variant<StateSnapshot, SaveDrop> Hop::TakeForSave(const Stream& stream,
                                                       const forward::Save& save, bool has_target) {
  if (!options_.checkpoints.enabled || !options_.caching) return SaveDrop::kCheckpointsOff;
  if (!has_target) return SaveDrop::kNoTarget;
  const SessionEntry* entry = stream.stateful ? store_.Find(stream.session) : nullptr;
  // A state that is on loan comes back half-way or not at all: nothing waits for it here.
  if (entry == nullptr || !entry->has_state || entry->state.empty() ||
      entry->state_epoch != stream.epoch || entry->held < save.at_tokens || save.at_tokens == 0) {
    return SaveDrop::kNotHeld;
  }
  const uint64_t bytes = CanonicalBytes(entry->state, save.at_tokens);
  if (!saves_.Fits(bytes) || !store_.WithinBytes(bytes)) return SaveDrop::kBackpressure;
  return TakeSnapshot(*entry, options_.layers, save.at_tokens);
}

void Hop::Launch(SaveJob job, StreamId stream) {
  job.id = saves_.Add({.stream = stream,
                       .write_id = job.write_id,
                       .reason = job.reason,
                       .bytes = job.snapshot.bytes});
  store_.SetSnapshotBytes(saves_.bytes());
  effects_.emplace_back(StartSave{std::make_shared<SaveJob>(std::move(job))});
}

void Hop::SaveAlone(SessionEntry&& entry, forward::SaveReason reason) {
  const bool evicted = reason == forward::SaveReason::kEvict;
  if (evicted && entry.held < options_.checkpoints.min_tokens) {
    return saves_.CountDrop(reason, SaveDrop::kTooShort);
  }
  StateSnapshot snapshot = TakeWhole(std::move(entry), options_.layers);
  // An evicted session's memory is wanted by another; at the end of the process nobody wants it.
  if (evicted && !saves_.Fits(snapshot.bytes)) {
    return saves_.CountDrop(reason, SaveDrop::kBackpressure);
  }
  Launch({.snapshot = std::move(snapshot),
          .reason = reason,
          .time_limit = evicted ? options_.checkpoints.evict_save_timeout
                                : options_.checkpoints.save_timeout},
         StreamId{0});
}

void Hop::SaveEvicted() {
  for (SessionEntry& entry : store_.TakeEvicted()) {
    SaveAlone(std::move(entry), forward::SaveReason::kEvict);
  }
}

// What no stream uses any more, of a shard that leaves.
void Hop::SaveResting() {
  for (SessionEntry* entry : store_.Resting()) SaveLeaving(entry);
}

void Hop::SaveLeaving(SessionEntry* entry) {
  if (!options_.checkpoints.fragments || !entry->has_state || entry->state.empty()) return;
  SaveAlone(std::move(*entry), forward::SaveReason::kShutdown);
  store_.ForgetState(entry, MissCause::kUnknownSession);
}

void Hop::OnSaveStarted(SaveId id) {
  SaveBook::Flight* flight = saves_.Find(id);
  if (flight == nullptr || std::exchange(flight->started, true)) return;
  const Stream* stream = Find(flight->stream);
  if (stream == nullptr || stream->up_gone) return;
  Tell(flight->stream, forward::SaveState{.hop_index = stream->hop_index,
                                          .write_id = flight->write_id,
                                          .state = forward::SaveState::State::kStarted});
}

void Hop::OnSaveEnded(SaveId id, std::optional<SaveDrop> drop, MonoTime now) {
  const std::optional<SaveBook::Flight> flight = saves_.End(id, drop);
  if (!flight.has_value()) return;
  store_.SetSnapshotBytes(saves_.bytes());
  if (Stream* stream = Find(flight->stream); stream != nullptr) {
    stream->last_event = now;
    if (!stream->up_gone) {
      forward::SaveState told{.hop_index = stream->hop_index,
                              .write_id = flight->write_id,
                              .state = forward::SaveState::State::kDone};
      if (drop.has_value()) {
        told.state = forward::SaveState::State::kDropped;
        told.cause = std::string(SaveDropName(*drop));
      }
      Tell(flight->stream, std::move(told));
    }
    EndIfSettled(flight->stream, now);
  }
  BeginThoseWithRoom(now);
}

RestoreJob Hop::MakeRestoreJob(StreamId id, const forward::Open& open,
                               forward::HopRestore restore) {
  Stream& stream = streams_.at(id);
  const auto tokens = static_cast<std::ptrdiff_t>(restore.tokens);
  stream.restore_tokens = {open.history.begin(), open.history.begin() + tokens};
  stream.restore_last_step = restore.last_step;
  RestoreJob job{.stream = id,
                 .cache_namespace = open.cache_namespace,
                 .tokens = stream.restore_tokens,
                 .time_limit = options_.checkpoints.restore_timeout,
                 .trace = stream.trace};
  job.reads = PlanReads(restore, options_.layers).value();  // the edge has checked it
  return job;
}

// The bytes of a session that was pushed out may still lie in memory while it is saved: the
// newcomer waits, compute does not.
void Hop::Begin(StreamId id, MonoTime now) {
  Stream& stream = streams_.at(id);
  if (stream.stateful && saves_.size() > 0 && !store_.WithinBytes()) {
    if (stream.waits != Stream::Waits::kRoom) stream.waits_since = now;
    stream.waits = Stream::Waits::kRoom;
    return;
  }
  stream.waits = Stream::Waits::kNothing;
  if (!stream.restore.has_value()) return AnswerOpened(id, stream, /*restored=*/false);
  stream.waits = Stream::Waits::kRestore;
  effects_.emplace_back(StartRestore{*std::exchange(stream.restore, std::nullopt)});
}

void Hop::BeginThoseWithRoom(MonoTime now) {
  std::vector<StreamId> ids;
  for (const auto& [id, stream] : streams_) {
    if (stream.waits == Stream::Waits::kRoom && !stream.closing) ids.push_back(id);
  }
  for (const StreamId id : ids) {
    Begin(id, now);
    Pump(id, now);
  }
}

void Hop::AnswerOpened(StreamId id, Stream& stream, bool restored) {
  forward::Opened opened{.hop_index = stream.hop_index, .restored = restored};
  if (const SessionEntry* entry = store_.Find(stream.session);
      stream.stateful && entry != nullptr) {
    opened.held = entry->held;
    opened.last_step = entry->last_step;
    opened.epoch = entry->has_state ? entry->state_epoch : SessionEpoch{0};
  }
  Tell(id, opened);
}

// For room or for restored state: nothing will run on the stream.
void Hop::StopWaiting(StreamId id, Stream& stream) {
  if (std::exchange(stream.waits, Stream::Waits::kNothing) == Stream::Waits::kRestore) {
    effects_.emplace_back(CancelRestore{id});
  }
}

void Hop::OnRestoreDone(StreamId id, RestoreResult result, MonoTime now) {
  Stream* stream = Find(id);
  if (stream == nullptr || stream->waits != Stream::Waits::kRestore) return;
  stream->waits = Stream::Waits::kNothing;
  stream->last_event = now;
  if (const auto* failure = std::get_if<RestoreFailure>(&result)) {
    ++counters_.restores_failed[static_cast<size_t>(failure->fault)];
    End(id, RestoreMiss(*stream, *failure), now);
    return;
  }
  SessionEntry* entry = store_.Find(stream->session);
  if (entry != nullptr) Install(*stream, entry, std::get<RestoredState>(std::move(result)));
  ++counters_.restores;
  AnswerOpened(id, *stream, /*restored=*/true);
  stream->restore_tokens = {};
  Pump(id, now);
  EndIfDrained(id, now);
}

// Replaces what is held; a job that has it on loan brings it back for nothing.
void Hop::Install(const Stream& stream, SessionEntry* entry, RestoredState restored) {
  store_.ForgetState(entry, MissCause::kPoisoned);
  store_.Disown(entry);
  entry->has_state = true;
  entry->state = std::move(restored.state);
  entry->state_epoch = stream.epoch;
  entry->Extend(stream.restore_tokens);
  entry->last_step = stream.restore_last_step;
  if (restored.last_row.size() == options_.hidden_size) entry->last_row = restored.last_row;
  uint64_t bytes = 0;
  for (const auto& layer : entry->state) bytes += layer == nullptr ? 0 : layer->bytes();
  store_.SetBytes(entry, bytes);
}

absl::Status Hop::RestoreMiss(const Stream& stream, const RestoreFailure& failure) {
  ++counters_.misses[static_cast<size_t>(MissCause::kRestoreFailed)];
  const std::string cause =
      absl::StrCat(MissCauseName(MissCause::kRestoreFailed), ":", RestoreFaultName(failure.fault));
  ErrorInfo info{.reason = std::string(reason::kCacheMiss),
                 .metadata = {{"cause", cause},
                              {"hop", absl::StrCat(stream.hop_index)},
                              {"held", "0"},
                              {"wanted", absl::StrCat(stream.restore_tokens.size())}}};
  if (failure.slab.has_value()) {
    info.metadata["slab_key"] = failure.slab->key.ToHex();
    info.metadata["slab_layers"] =
        absl::StrCat(failure.slab->layers.begin, ":", failure.slab->layers.end);
    info.metadata["slab_write_id"] = failure.slab->write_id.ToHex();
    info.metadata["slab_store"] = failure.slab->store_address;
    info.metadata["slab_is_bad"] = failure.slab_is_bad() ? "true" : "false";
  }
  return WithErrorInfo(absl::AbortedError(absl::StrCat("cache miss at hop ", stream.hop_index, ": ",
                                                       cause, ": ", failure.detail)),
                       info);
}

absl::Status Hop::NoRoomInTime() const {
  return WithRetryDelay(
      WithErrorInfo(absl::ResourceExhaustedError(
                        absl::StrCat("no room yet: ", saves_.bytes(),
                                     " bytes of sessions that were pushed out are being saved")),
                    {.reason = std::string(reason::kNoRoom)}),
      options_.store.retry_delay);
}

}  // namespace kvmesh::shard
