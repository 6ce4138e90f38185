// The one pool of compute threads of a process. A run hands out task numbers to all threads, the
// caller's included; between runs the threads spin for at most 20 us and then sleep, so that two
// shards on the same cores do not slow one another. A thread that is late to a run is not waited
// for.
//
// Of T threads, thread w begins with the tasks w, w + T, w + 2T ..., in order, and then helps the
// others with what is left of theirs: give the large tasks the low numbers. A thread counts its own
// tasks in a cache line of its own, because a line that moves between cores costs more than many a
// task.
//
// Run is called by one thread at a time and not from inside a task.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
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
  // Upper half: the run. Lower half: how many of the thread's tasks were begun in it.
  struct alignas(64) Share {
    std::atomic<uint64_t> begun{0};
  };

  void WorkerLoop(uint32_t worker);
  void TakeTasks(uint32_t run, uint32_t worker);
  bool TakeTask(uint32_t run, uint32_t owner, size_t* index);
  bool Enter(uint32_t run);
  void WakeWorkers();
  void WaitForWorkers();

  // What a thread reads to begin with a run: one line.
  // Upper half: number of the run. Lower half: kClosed, and how many workers are inside.
  alignas(64) std::atomic<uint64_t> state_;
  size_t count_ = 0;
  const Task* task_ = nullptr;

  std::vector<Share> shares_;  // [threads]

  // Seldom written.
  alignas(64) std::atomic<bool> stop_{false};
  std::atomic<uint32_t> parked_{0};
  std::atomic<bool> caller_parked_{false};
  Mutex mutex_;
  CondVar wake_workers_;
  CondVar wake_caller_;
  std::exception_ptr failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> workers_;
};

}  // namespace kvmesh::shard
