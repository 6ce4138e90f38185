#include "services/meta/grpc/arbiter_loop.h"

#include <algorithm>

#include "common/base/error_info.h"

namespace kvmesh::meta {
namespace {

constexpr absl::Duration kRetryDelay = absl::Milliseconds(200);
// Timers and figures that are not the arbiter's.
constexpr absl::Duration kHousekeeping = absl::Seconds(1);
// Rows that are swept between two looks at the queue.
constexpr size_t kSweptRows = 256;
// Hits wait for the next command, or for so many of them: they are applied before any that comes
// later, and waking the thread costs a lookup more than all the rest of its hit.
constexpr size_t kTouchesPerWake = 128;
constexpr size_t kTouchesMax = 8192;
// Where more commands wait for a store, what is done in steps waits for it a while.
constexpr size_t kStoreBacklogMax = 8192;
constexpr absl::Duration kBacklogPause = absl::Milliseconds(2);

absl::Status DrainingStatus() {
  return WithErrorInfo(absl::UnavailableError("the arbiter drains"),
                       ErrorInfo{.reason = std::string(reason::kDraining)});
}

}  // namespace

absl::Status BusyStatus(absl::string_view what) {
  return WithRetryDelay(WithErrorInfo(absl::ResourceExhaustedError(what),
                                      ErrorInfo{.reason = std::string(reason::kQueueFull)}),
                        kRetryDelay);
}

ArbiterLoop::ArbiterLoop(const LoopOptions& options, const Clock& clock, MetaMetrics& metrics,
                         ReadIndex& index)
    : clock_(clock),
      metrics_(metrics),
      index_(index),
      queue_max_(options.queue_max),
      arbiter_(options.arbiter),
      housekept_(clock.Now()),
      thread_([this] { Run(); }) {}

ArbiterLoop::~ArbiterLoop() {
  Drain();
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  work_came_.NotifyAll();
  thread_.join();
}

absl::Status ArbiterLoop::Enqueue(Work& work) {
  {
    MutexLock lock(&mutex_);
    if (draining_) return DrainingStatus();
    if (queue_.size() >= queue_max_) return BusyStatus("too many commands are waiting");
    queue_.push_back(std::move(work));
  }
  work_came_.NotifyOne();
  return absl::OkStatus();
}

void ArbiterLoop::EnqueueAlways(std::function<void(MonoTime)> run) {
  {
    MutexLock lock(&mutex_);
    queue_.push_back(Work{.run = std::move(run)});
  }
  work_came_.NotifyOne();
}

void ArbiterLoop::Touch(const RowHit& hit) {
  {
    MutexLock lock(&mutex_);
    if (draining_ || touches_.size() >= kTouchesMax) return;
    touches_.push_back(hit);
    if (touches_.size() != kTouchesPerWake) return;
  }
  work_came_.NotifyOne();
}

void ArbiterLoop::Abandon(Ticket ticket) {
  EnqueueAlways([this, ticket](MonoTime now) {
    if (!waiting_.contains(ticket)) return;
    Apply(meta::Abandon{.ticket = ticket}, now);
    Fail(ticket, absl::CancelledError("the caller is gone"));
  });
}

absl::Status ArbiterLoop::Ask(Query query) {
  Work work{.run = [this, query = std::move(query)](MonoTime now) {
    query({.arbiter = arbiter_, .stores = stores_, .now = now});
  }};
  return Enqueue(work);
}

StreamId ArbiterLoop::AddStream(std::shared_ptr<StoreConnection> connection) {
  const StreamId stream{next_stream_.fetch_add(1, std::memory_order_relaxed)};
  EnqueueAlways([this, stream, connection = std::move(connection)](MonoTime now) mutable {
    bool draining = false;
    {
      MutexLock lock(&mutex_);
      draining = draining_;
    }
    if (draining) return connection->Close(DrainingStatus());
    stores_.Add(stream, std::move(connection), now);
  });
  return stream;
}

void ArbiterLoop::Tell(StreamId stream, Command command) {
  EnqueueAlways([this, stream, command = std::move(command)](MonoTime now) {
    if (const auto* hello = std::get_if<StoreHello>(&command)) stores_.SaidHello(*hello);
    Apply(command, now);
    stores_.ReadNext(stream);
  });
}

void ArbiterLoop::TellText(StreamId stream, v1::SlabText text) {
  EnqueueAlways([this, stream, text = std::move(text)](MonoTime) {
    stores_.TakeText(stream, text);
    stores_.ReadNext(stream);
  });
}

void ArbiterLoop::Refuse(StreamId stream, const absl::Status& status) {
  EnqueueAlways([this, stream, status](MonoTime now) {
    stores_.Close(stream, status);
    Apply(StoreGone{.stream = stream}, now);
  });
}

void ArbiterLoop::StreamEnded(StreamId stream) {
  EnqueueAlways([this, stream](MonoTime now) {
    stores_.Close(stream, absl::CancelledError("the store left"));
    Apply(StoreGone{.stream = stream}, now);
  });
}

void ArbiterLoop::Drain() {
  {
    MutexLock lock(&mutex_);
    if (draining_) return;
    draining_ = true;
  }
  EnqueueAlways([this](MonoTime) {
    stores_.CloseAll(DrainingStatus());
    FailAll(DrainingStatus());
  });
}

void ArbiterLoop::Run() {
  while (true) {
    const MonoTime before = clock_.Now();
    const absl::Duration until_timer =
        std::min(arbiter_.NextTimer(), housekept_ + kHousekeeping) - before;
    absl::Duration wait_max = std::max(until_timer, absl::ZeroDuration());
    const bool has_more = arbiter_.HasMore();
    const bool goes_on = has_more && stores_.waiting_max() <= kStoreBacklogMax;
    if (has_more) wait_max = std::min(wait_max, kBacklogPause);
    if (index_.Sweep(kSweptRows) || goes_on) wait_max = absl::ZeroDuration();
    Taken taken = Take(wait_max);
    if (taken.stop) return;
    for (const RowHit& hit : taken.touches) Apply(hit, clock_.Now());
    for (Work& item : taken.work) RunOne(std::move(item), clock_.Now());
    if (goes_on) Apply(GoOn{}, clock_.Now());
    const MonoTime now = clock_.Now();
    if (arbiter_.NextTimer() <= now) Apply(Tick{}, now);
    if (now - housekept_ < kHousekeeping) continue;
    housekept_ = now;
    stores_.Tick(now);
    metrics_.SetState(arbiter_.Counts(), index_.cut_points(), arbiter_.Stores());
  }
}

ArbiterLoop::Taken ArbiterLoop::Take(absl::Duration wait_max) {
  Taken taken;
  {
    MutexLock lock(&mutex_);
    const bool idle = queue_.empty() && touches_.size() < kTouchesPerWake && !stopping_;
    if (idle && wait_max > absl::ZeroDuration()) work_came_.WaitFor(&mutex_, wait_max);
    taken.stop = stopping_ && queue_.empty();
    taken.touches.swap(touches_);
    taken.work.swap(queue_);
  }
  metrics_.SetQueue(taken.work.size());
  return taken;
}

void ArbiterLoop::RunOne(Work work, MonoTime now) {
  if (!work.command) return work.run(now);
  if (work.done != nullptr) waiting_.emplace(work.ticket, std::move(work.done));
  Apply(*work.command, now);
}

void ArbiterLoop::Apply(const Command& command, MonoTime now) {
  PerformAll(arbiter_.Apply(command, now));
  // A store that does not read was closed on our side: to the arbiter its stream has ended. What
  // that leads to may close another.
  while (!overrun_.empty()) {
    const StreamId stream = overrun_.back();
    overrun_.pop_back();
    PerformAll(arbiter_.Apply(StoreGone{.stream = stream}, now));
  }
}

void ArbiterLoop::PerformAll(const std::vector<Effect>& effects) {
  for (const Effect& effect : effects) {
    std::visit([this](const auto& part) { Perform(part); }, effect);
  }
}

void ArbiterLoop::Perform(const Reply& reply) {
  const auto found = waiting_.find(reply.ticket);
  if (found == waiting_.end()) return;
  const Done done = std::move(found->second);
  waiting_.erase(found);
  done(reply.answer, arbiter_.incarnation());
}

void ArbiterLoop::Perform(const ToStore& message) {
  if (!stores_.Send(message)) overrun_.push_back(message.stream);
}

void ArbiterLoop::Perform(const CloseStream& close) {
  stores_.Close(close.stream, close.status);
}

void ArbiterLoop::Fail(Ticket ticket, const absl::Status& status) {
  Perform(Reply{.ticket = ticket, .answer = status});
}

void ArbiterLoop::FailAll(const absl::Status& status) {
  // Answers may ask anew, and are refused then.
  while (!waiting_.empty()) Fail(waiting_.begin()->first, status);
}

}  // namespace kvmesh::meta
