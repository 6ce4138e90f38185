#include "services/shard/engine/compute_pool.h"

#include <chrono>
#include <utility>

#include "absl/time/time.h"

namespace kvmesh::shard {
namespace {

constexpr uint64_t kLowerHalf = (uint64_t{1} << 32) - 1;
constexpr auto kSpin = std::chrono::microseconds(20);
// A sleeper looks up this often even if nobody wakes it.
constexpr absl::Duration kParkedMax = absl::Seconds(1);

uint64_t RunOf(uint64_t word) {
  return word >> 32;
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits for `done` about as long as it takes to look at what other threads have left. False: not
// done.
template <typename Condition>
bool SpinBriefly(const Condition& done) {
  for (int i = 0; i < 16; ++i) {
    if (done()) return true;
    Pause();
  }
  return false;
}

// Waits for `done` without sleeping. False: not done within kSpin.
template <typename Condition>
bool SpinUntil(const Condition& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    if (SpinBriefly(done)) return true;
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

ComputePool::ComputePool(uint32_t threads, const std::function<void()>& on_thread_start)
    : shares_(threads) {
  for (uint32_t worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker, on_thread_start] {
      on_thread_start();
      WorkerLoop(worker);
    });
  }
}

ComputePool::~ComputePool() {
  stop_.store(true);
  WakeWorkers();
  for (std::thread& worker : workers_) worker.join();
}

void ComputePool::Run(size_t count, Task task) {
  if (count <= 1 || workers_.empty()) {
    for (size_t i = 0; i < count; ++i) task(i, /*worker=*/0);
    return;
  }
  task_.emplace(task);
  const uint64_t run = (RunOf(run_.load()) + 1) << 32 | count;
  run_.store(run);
  if (parked_.load() > 0) WakeWorkers();
  const size_t own = TakeTasksOf(0, run, /*worker=*/0);
  size_t left = count - own;
  const auto others_are_through = [&] { return finished_.load() == finished_before_ + left; };
  if (!SpinBriefly(others_are_through)) left -= HelpOthers(run, /*worker=*/0);
  finished_before_ += left;
  WaitUntilFinished(finished_before_);
  if (failed_.load()) RethrowFailure();
}

// Threads that are late may still look at an older run. They take nothing: the share of each run
// that is over was brought to its end, and only that of a run that goes on is begun.
bool ComputePool::TakeTask(uint32_t owner, uint64_t run, size_t* index) {
  std::atomic<uint64_t>& begun = shares_[owner].begun;
  uint64_t seen = begun.load();
  while (true) {
    const bool is_begun = RunOf(seen) == RunOf(run);
    const uint64_t done = is_begun ? seen & kLowerHalf : 0;
    *index = owner + done * threads();
    if (*index >= (run & kLowerHalf)) return false;
    if (!is_begun && run_.load() != run) return false;
    if (begun.compare_exchange_weak(seen, RunOf(run) << 32 | (done + 1))) return true;
  }
}

size_t ComputePool::TakeTasksOf(uint32_t owner, uint64_t run, uint32_t worker) {
  size_t tasks = 0;
  for (size_t index = 0; TakeTask(owner, run, &index); ++tasks) RunTask(index, worker);
  return tasks;
}

size_t ComputePool::HelpOthers(uint64_t run, uint32_t worker) {
  size_t tasks = 0;
  for (uint32_t i = 1; i < threads(); ++i) {
    tasks += TakeTasksOf((worker + i) % threads(), run, worker);
  }
  return tasks;
}

void ComputePool::RunTask(size_t index, uint32_t worker) {
  if (failed_.load(std::memory_order_relaxed)) return;
  try {
    (*task_)(index, worker);
  } catch (...) {
    MutexLock lock(&mutex_);
    if (failure_ == nullptr) failure_ = std::current_exception();
    failed_.store(true);
  }
}

void ComputePool::Finished(size_t tasks) {
  if (tasks == 0) return;
  finished_.fetch_add(tasks);
  if (caller_parked_.load()) {
    MutexLock lock(&mutex_);
    wake_caller_.NotifyOne();
  }
}

void ComputePool::WorkerLoop(uint32_t worker) {
  uint64_t run = 0;
  const auto has_news = [&] { return run_.load() != run || stop_.load(); };
  while (!stop_.load()) {
    if (!SpinUntil(has_news)) {
      parked_.fetch_add(1);
      MutexLock lock(&mutex_);
      while (!has_news()) wake_workers_.WaitFor(&mutex_, kParkedMax);
      parked_.fetch_sub(1);
    }
    run = run_.load();
    // Its own are said to be done before it looks for others': the caller may wait for them.
    Finished(TakeTasksOf(worker, run, worker));
    if (!SpinBriefly(has_news)) Finished(HelpOthers(run, worker));
  }
}

void ComputePool::WakeWorkers() {
  MutexLock lock(&mutex_);
  wake_workers_.NotifyAll();
}

void ComputePool::WaitUntilFinished(uint64_t tasks) {
  const auto is_finished = [&] { return finished_.load() == tasks; };
  if (SpinUntil(is_finished)) return;
  caller_parked_.store(true);
  {
    MutexLock lock(&mutex_);
    while (!is_finished()) wake_caller_.WaitFor(&mutex_, kParkedMax);
  }
  caller_parked_.store(false);
}

void ComputePool::RethrowFailure() {
  std::exception_ptr failure;
  {
    MutexLock lock(&mutex_);
    std::swap(failure, failure_);
  }
  failed_.store(false);
  std::rethrow_exception(failure);
}

}  // namespace kvmesh::shard
