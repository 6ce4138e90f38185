// The arbiter's thread: one ordered, bounded queue of commands, the state machine behind it, and
// what its effects lead to: answers to callers, frames to stores, deltas of the read index.
//
// Thread-safe but for what is said to be of its thread. Every command that was taken is answered
// once, also by the end of the loop.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "services/meta/core/arbiter.h"
#include "services/meta/grpc/meta_metrics.h"
#include "services/meta/grpc/store_hub.h"
#include "services/meta/index/read_index.h"

namespace kvmesh::meta {

struct LoopOptions {
  ArbiterOptions arbiter;
  size_t queue_max = 16384;
};

class ArbiterLoop {
 public:
  // Takes an answer, on the loop's thread (or on the caller's, where the command was refused). It
  // must not block, and may give further commands. `incarnation` is the arbiter's, at that moment.
  using Done = std::function<void(const Answer& answer, const Incarnation& incarnation)>;
  // What a query may look at. Stores may also be asked for texts.
  struct View {
    const Arbiter& arbiter;
    StoreHub& stores;
    MonoTime now;
  };
  // Runs on the loop's thread, between two commands.
  using Query = std::function<void(const View& view)>;

  // All outlive the loop.
  ArbiterLoop(const LoopOptions& options, const Clock& clock, MetaMetrics& metrics,
              ReadIndex& index);
  ~ArbiterLoop();

  // Gives a command that has a ticket; fills that in. ResourceExhausted QUEUE_FULL or Unavailable
  // go to `done` at once.
  template <typename Asked>
  Ticket Ask(Asked command, Done done) {
    const Ticket ticket = NextTicket();
    command.ticket = ticket;
    Work work{.command = std::move(command), .ticket = ticket, .done = std::move(done)};
    if (const absl::Status taken = Enqueue(work); !taken.ok()) work.done(Answer(taken), {});
    return ticket;
  }
  // A lookup has hit this row. Applied before later commands, within about a second. Dropped when
  // much waits.
  void Touch(const RowHit& hit);
  // Nobody waits for the answer any more. If it has not come yet, `done` gets Cancelled.
  void Abandon(Ticket ticket);
  // ResourceExhausted QUEUE_FULL, Unavailable: the query will not run.
  absl::Status Ask(Query query);

  // A stream has begun. The frames that follow it by Tell are never refused: each stream has one
  // under way, and reads the next when that was applied.
  StreamId AddStream(std::shared_ptr<StoreConnection> connection);
  void Tell(StreamId stream, Command command);
  void TellText(StreamId stream, v1::SlabText text);
  // A frame was none: the stream is closed with this status.
  void Refuse(StreamId stream, const absl::Status& status);
  // The stream has ended.
  void StreamEnded(StreamId stream);

  // Closes the streams of the stores, answers all that waits with Unavailable and refuses commands
  // from here on. Idempotent.
  void Drain();

 private:
  // A command, with the ticket and the taker of its answer if it has one, or something else to run.
  struct Work {
    std::optional<Command> command;
    Ticket ticket{0};
    Done done;
    std::function<void(MonoTime now)> run;
  };

  Ticket NextTicket() { return Ticket{next_ticket_.fetch_add(1, std::memory_order_relaxed)}; }
  // Takes the work. ResourceExhausted, Unavailable: it is left as it was.
  absl::Status Enqueue(Work& work);
  // What is never refused.
  void EnqueueAlways(std::function<void(MonoTime now)> run);

  // ---- Of the loop's thread ----
  void Run();
  // What came in, also while it waited for at most so long.
  struct Taken {
    std::vector<RowHit> touches;
    std::deque<Work> work;
    bool stop = false;  // and nothing comes any more
  };
  Taken Take(absl::Duration wait_max);
  void RunOne(Work work, MonoTime now);
  void Apply(const Command& command, MonoTime now);
  void PerformAll(const std::vector<Effect>& effects);
  void Perform(const Reply& reply);
  void Perform(const ToStore& message);
  void Perform(const CloseStream& close);
  template <typename Delta>
  void Perform(const Delta& delta) {
    index_.Apply(delta);
  }
  void Fail(Ticket ticket, const absl::Status& status);
  void FailAll(const absl::Status& status);

  const Clock& clock_;
  MetaMetrics& metrics_;
  ReadIndex& index_;
  const size_t queue_max_;
  std::atomic<uint64_t> next_ticket_{1};
  std::atomic<uint64_t> next_stream_{1};

  Mutex mutex_;
  CondVar work_came_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<RowHit> touches_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Of the loop's thread.
  Arbiter arbiter_;
  StoreHub stores_;
  absl::flat_hash_map<Ticket, Done> waiting_;
  std::vector<StreamId> overrun_;  // closed while effects were performed
  MonoTime housekept_;

  std::thread thread_;
};

// ResourceExhausted QUEUE_FULL with a retry delay.
absl::Status BusyStatus(absl::string_view what);

}  // namespace kvmesh::meta
