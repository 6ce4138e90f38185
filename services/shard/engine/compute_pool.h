// The one pool of compute threads of a process. A run hands out task numbers to all threads, the
// caller's included; between runs the threads spin for at most 20 us and then sleep, so that two
// shards on the same cores do not slow one another. A thread that is late to a run is not waited
// for.
//
// Of T threads, thread w begins with the tasks w, w + T, w + 2T ..., in order, and then helps the
// others with what is left of theirs: give the large tasks the low numbers.
//
// A line that moves between cores takes as long as many a task, so that a run is made of as few as
// can be: one says what to do, each thread counts its own tasks in one of its own, which others
// touch only to help, and one counts the tasks that are done. Who takes a task holds the run open
// by that; there is no other entry.
//
// Run is called by one thread at a time and not from inside a task, with less than 2^32 tasks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/mutex.h"

namespace kvmesh::shard {

class ComputePool {
 public:
  using Task = absl::FunctionRef<void(size_t index, uint32_t worker)>;

  // `threads` counts the caller of Run; at least 1. `on_thread_start` runs in each further thread.
  ComputePool(uint32_t threads, const std::function<void()>& on_thread_start);
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  uint32_t threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }

  // Runs task(index, worker) once for each index below `count`; worker is below threads(), and no
  // two tasks run as the same worker at once. The first exception that a task throws is rethrown
  // here; the tasks not yet begun are left out.
  void Run(size_t count, Task task);

 private:
  // Upper half: the run in which tasks of this thread were last begun. Lower half: how many.
  struct alignas(64) Share {
    std::atomic<uint64_t> begun{0};
  };

  void WorkerLoop(uint32_t worker);
  // The number of tasks of `owner` that were left and that `worker` ran.
  size_t TakeTasksOf(uint32_t owner, uint64_t run, uint32_t worker);
  size_t HelpOthers(uint64_t run, uint32_t worker);
  bool TakeTask(uint32_t owner, uint64_t run, size_t* index);
  void RunTask(size_t index, uint32_t worker);
  void Finished(size_t tasks);
  void WakeWorkers();
  void WaitUntilFinished(uint64_t tasks);
  void RethrowFailure();

  // What a thread reads to begin with a run: one line.
  // Upper half: number of the run. Lower half: its tasks.
  alignas(64) std::atomic<uint64_t> run_{0};
  std::optional<Task> task_;  // read by those that have taken a task, written when none has one

  std::vector<Share> shares_;  // [threads]

  // Tasks of all runs that were done by other threads than Run's.
  alignas(64) std::atomic<uint64_t> finished_{0};

  // Seldom written.
  alignas(64) std::atomic<bool> stop_{false};
  std::atomic<uint32_t> parked_{0};
  std::atomic<bool> caller_parked_{false};
  std::atomic<bool> failed_{false};  // the tasks not yet begun are passed over
  uint64_t finished_before_ = 0;     // of runs before this one: Run's thread alone
  Mutex mutex_;
  CondVar wake_workers_;
  CondVar wake_caller_;
  std::exception_ptr failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> workers_;
};

}  // namespace kvmesh::shard
