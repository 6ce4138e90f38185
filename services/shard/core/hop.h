// A whole shard as a state machine over Forward streams: session store, frame rules, credits,
// choice of work. Pure: no gRPC, threads or clock. Things happen to it (On…, NextJob, Drain, Tick);
// what it wants done in return it queues as effects, which the caller takes with TakeEffects()
// after every call and performs in that order, outside its lock.
//
// Not thread-safe; the caller serialises all calls, and runs jobs beside them. At most one job is
// out at a time: after NextJob() gave one, its OnJobDone() comes before the next NextJob(). Events
// of streams that have ended are ignored, whenever they come.
//
// A stream's life: OnFrame(Open) first (the caller sees to it; other frames of an unknown stream
// are ignored). It ends with exactly one EndUp effect, or with OnUpLost(); after either, its id is
// never used again and the call to its next hop has ended or been cancelled by EndDown.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/limits.h"
#include "common/forward/frames.h"
#include "services/shard/core/checkpoint.h"
#include "services/shard/core/frame_rules.h"
#include "services/shard/core/hop_options.h"
#include "services/shard/core/job.h"
#include "services/shard/core/save_book.h"
#include "services/shard/core/session_store.h"

namespace kvmesh::shard {

// Send an answer to the caller of the stream.
struct AnswerUp {
  StreamId stream{0};
  forward::Answer answer;
};
// End the stream with this status, after all answers queued before it.
struct EndUp {
  StreamId stream{0};
  absl::Status status;
};
// Call Forward at the next hop; its answers and end come back as OnDownAnswer and OnDownEnd.
struct OpenDown {
  StreamId stream{0};
  forward::HopRef hop;
  forward::Open open;
};
// Send a frame to the next hop. A Close is the last one: half-close after it.
struct SendDown {
  StreamId stream{0};
  forward::Frame frame;
};
// Cancel the call to the next hop.
struct EndDown {
  StreamId stream{0};
};
// Store a slab; comes back as OnSaveStarted and OnSaveEnded, within the job's time limit.
struct StartSave {
  std::shared_ptr<SaveJob> job;  // shared: an executor's queue copies what it holds
};
// Read stored state; comes back as OnRestoreDone, within the job's time limit.
struct StartRestore {
  RestoreJob job;
};
// Give up the reading: nobody waits for it any more. Its OnRestoreDone may come all the same.
struct CancelRestore {
  StreamId stream{0};
};
using Effect = std::variant<AnswerUp, EndUp, OpenDown, SendDown, EndDown, StartSave, StartRestore,
                            CancelRestore>;

struct HopCounters {
  std::array<uint64_t, kMissCauseCount> misses{};
  uint64_t streams = 0;     // accepted
  uint64_t superseded = 0;  // streams ended or refused by a newer epoch or attempt
  uint64_t replays = 0;
  uint64_t frames_run = 0;
  uint64_t tokens_run = 0;
  uint64_t steps_cancelled = 0;
  uint64_t bad_logits = 0;
  uint64_t restores = 0;  // done
  std::array<uint64_t, kRestoreFaultCount> restores_failed{};
  uint64_t full_hits = 0;
};

class Hop {
 public:
  explicit Hop(const HopOptions& options);

  // `frame` has passed the codec. The stream ends with an error (EndUp) if it does not fit this
  // shard:
  //   InvalidArgument      a second Open, shape, ids, past_len or layers out of range,
  //   credit exceeded FailedPrecondition   WRONG_INSTANCE, WRONG_LAYERS, MODEL_MISMATCH,
  //   UNKNOWN_FEATURE, FORBIDDEN_PEER ResourceExhausted    NO_ROOM, TOO_LARGE, QUEUE_FULL Aborted
  //   SUPERSEDED, DRAINING, CACHE_MISS
  void OnFrame(StreamId id, forward::Frame frame, MonoTime now);
  // A frame that could not be decoded, or a writer that stalled: ends the stream with `status`.
  void OnBadFrame(StreamId id, const absl::Status& status, MonoTime now);
  // The stream ended without Close: cancelled by the caller, or its link was lost.
  void OnUpLost(StreamId id, MonoTime now);
  void OnDownAnswer(StreamId id, forward::Answer answer, MonoTime now);
  // The call to the next hop ended, with OK or otherwise, after all its answers.
  void OnDownEnd(StreamId id, const absl::Status& status, MonoTime now);

  // Whether NextJob() would find something: a frame that may run now, or that is settled without.
  bool HasWork() const;
  // The next thing to compute, if anything may run now. May queue effects also when it returns
  // nothing: frames that need no compute (misses, repeated steps) are settled here.
  std::optional<Job> NextJob(MonoTime now);
  void OnJobDone(StreamId id, JobResult result, MonoTime now);

  // The slab's Put is open: the store has taken its header.
  void OnSaveStarted(SaveId id);
  // Stored, or dropped for a cause. Once a save.
  void OnSaveEnded(SaveId id, std::optional<SaveDrop> drop, MonoTime now);
  void OnRestoreDone(StreamId id, RestoreResult result, MonoTime now);

  // Frees the session's state up to `epoch` (0: any), ends its stream and remembers the pair. True
  // if something was freed.
  bool DropSession(const SessionId& session, SessionEpoch epoch, MonoTime now);
  // Counts as an access.
  std::optional<SessionView> GetSession(const SessionId& session, MonoTime now);
  std::vector<SessionView> ListSessions(const std::optional<SessionId>& after, size_t count,
                                        MonoTime now) const;

  // Refuses new streams; every stream ends with DRAINING once its outstanding answer has passed.
  // Idempotent.
  void Drain(MonoTime now);
  bool draining() const { return draining_; }
  // No stream is open, no job is out and nothing is being saved.
  bool quiet() const { return streams_.empty() && !running_.has_value() && saves_.size() == 0; }

  // Once a second: expires sessions, ends streams that nobody uses.
  void Tick(MonoTime now);

  std::vector<Effect> TakeEffects();

  const HopOptions& options() const { return options_; }
  const HopCounters& counters() const { return counters_; }
  const SessionCacheStore& store() const { return store_; }
  const SaveBook& saves() const { return saves_; }
  size_t streams() const { return streams_.size(); }
  size_t queued_frames() const;

 private:
  struct QueuedFrame {
    std::variant<forward::Compute, forward::Save, forward::Close> frame;
    MonoTime received;
  };

  struct Stream {
    SessionId session;
    SessionEpoch epoch{0};
    StreamAttempt attempt{0};
    uint32_t hop_index = 0;
    std::optional<forward::HopRef> next;  // none at the tail
    size_t hops_behind = 0;
    bool stateful = false;
    bool admitted = false;  // this stream's Open made the entry
    Trace trace;
    std::shared_ptr<const forward::SamplingOptions> sampling;
    std::vector<uint32_t> history;
    uint32_t prompt_tokens = 0;

    std::deque<QueuedFrame> queue;
    // Credits of one side of the stream. An Output is due for every frame with want_logits; true:
    // it is a step's (not a prefill chunk's) and so returns the step's credit.
    struct Outstanding {
      uint32_t chunks = 0;
      std::deque<bool> outputs;
      uint32_t steps() const;
    };
    Outstanding up;               // received, not yet acknowledged or answered
    Outstanding down;             // sent on
    size_t opened_behind = 0;     // hops further down that have accepted
    size_t save_states_due = 0;   // at most so many come from below
    bool close_received = false;  // nothing may follow
    bool dropping = false;        // a Close{DROP} waits for a step to end, since a save needs it
    bool closing = false;         // Close has been executed; the next hop's end and saves remain
    bool down_ended = false;      // with OK, after Close
    bool up_gone = false;         // the caller is gone meanwhile: nobody to tell
    MonoTime last_event;

    // Until Opened is answered nothing runs.
    enum class Waits { kNothing, kRoom, kRestore };
    Waits waits = Waits::kNothing;
    MonoTime waits_since;
    std::optional<RestoreJob> restore;     // while it waits for room
    std::vector<uint32_t> restore_tokens;  // ids
    uint32_t restore_last_step = 0;
  };

  struct Running {
    StreamId stream{0};
    SessionId session;
    uint64_t entry_serial = 0;  // 0: stateless
    SessionEpoch epoch{0};
    bool decode = false;
    bool from_row = false;
    bool fresh = false;
    std::shared_ptr<std::atomic<bool>> cancel;
  };

  Stream* Find(StreamId id);
  bool IsTail(const Stream& stream) const { return !stream.next.has_value(); }
  bool IsRunning(StreamId id) const { return running_.has_value() && running_->stream == id; }
  // Its state may be on loan to a job, also to one of an older stream.
  bool IsComputing(const SessionId& session) const {
    return running_.has_value() && running_->session == session;
  }

  // Frames (hop.cc).
  void OpenStream(StreamId id, forward::Open open, MonoTime now);
  absl::Status Accept(StreamId id, forward::Open open, MonoTime now);
  absl::Status Supersede(const forward::Open& open, MonoTime now);
  void OnCompute(StreamId id, Stream& stream, forward::Compute compute, MonoTime now);
  void OnClose(StreamId id, Stream& stream, forward::Close close, MonoTime now);
  void Tell(StreamId id, forward::Answer answer);
  void SendNext(StreamId id, forward::Frame frame);
  void ExecuteClose(StreamId id, Stream& stream, forward::Close close, MonoTime now);
  bool MayExecute(StreamId id, const Stream& stream) const;
  // Executes frames at the queue's head that need no compute.
  void Pump(StreamId id, MonoTime now);

  // Ends and answers from below (hop_ends.cc).
  enum class Below { kCancel, kEnded, kRefused };
  void End(StreamId id, const absl::Status& status, MonoTime now, Below below = Below::kCancel);
  void Remove(StreamId id, Below below, MonoTime now);
  void CancelRunning(const SessionId& session, bool also_decode);
  void EndIfDrained(StreamId id, MonoTime now);
  void EndIfSettled(StreamId id, MonoTime now);
  absl::Status NoRoomInTime() const;
  absl::Status WrapDown(const Stream& stream, const absl::Status& status) const;
  bool TakeDownAnswer(Stream& stream, const forward::Answer& answer);

  // Checkpoints (hop_checkpoints.cc).
  void ExecuteSave(StreamId id, Stream& stream, const forward::Save& save);
  std::variant<StateSnapshot, SaveDrop> TakeForSave(const Stream& stream, const forward::Save& save,
                                                    bool has_target);
  void Launch(SaveJob job, StreamId stream);
  // Saves a whole entry on this shard's own account; its state is gone from it afterwards.
  void SaveAlone(SessionEntry&& entry, forward::SaveReason reason);
  void SaveEvicted();
  void SaveResting();
  void SaveLeaving(SessionEntry* entry);
  RestoreJob MakeRestoreJob(StreamId id, const forward::Open& open, forward::HopRestore restore);
  // Answers Opened, or waits for room and restored state first.
  void Begin(StreamId id, MonoTime now);
  void BeginThoseWithRoom(MonoTime now);
  void AnswerOpened(StreamId id, Stream& stream, bool restored);
  void StopWaiting(StreamId id, Stream& stream);
  void Install(const Stream& stream, SessionEntry* entry, RestoredState restored);
  absl::Status RestoreMiss(const Stream& stream, const RestoreFailure& failure);

  // Jobs (hop_jobs.cc).
  std::optional<StreamId> Choose();
  std::optional<StreamId> Pick(bool decode) const;
  std::optional<Job> Start(StreamId id, MonoTime now);
  Job MakeJob(StreamId id, Stream& stream, forward::Compute compute, FrameAction action,
              SessionEntry* entry);
  void SettleFromStore(StreamId id, Stream& stream, forward::Compute compute, SessionEntry& entry,
                       FrameAction action, MonoTime now);
  void StoreResult(const Running& run, const JobResult& result, SessionState state,
                   SessionEntry* entry);
  void FinishFrame(StreamId id, Stream& stream, forward::Compute frame,
                   absl::Span<const float> rows, std::optional<forward::Output> output);
  absl::Status Miss(const Stream& stream, MissCause cause, const forward::Compute& compute,
                    MonoTime now);
  absl::Status JobFailure(const Stream& stream, const absl::Status& status);

  const HopOptions options_;
  SessionCacheStore store_;
  SaveBook saves_;
  std::map<StreamId, Stream> streams_;
  absl::flat_hash_map<SessionId, StreamId> by_session_;
  std::optional<Running> running_;
  StreamId last_picked_[2] = {StreamId{0}, StreamId{0}};  // prefill, decode
  uint32_t decodes_in_a_row_ = 0;
  bool draining_ = false;
  std::vector<Effect> effects_;
  HopCounters counters_;
};

}  // namespace kvmesh::shard
