#include "services/shard/engine/compute_pool.h"

#include <chrono>
#include <utility>

#include "absl/time/time.h"

namespace kvmesh::shard {
namespace {

constexpr uint64_t kClosed = uint64_t{1} << 31;
constexpr uint64_t kInsideMask = kClosed - 1;
constexpr uint64_t kBegunMask = (uint64_t{1} << 32) - 1;
constexpr auto kSpin = std::chrono::microseconds(20);
// A sleeper looks up this often even if nobody wakes it.
constexpr absl::Duration kParkedMax = absl::Seconds(1);

uint32_t RunOf(uint64_t state) {
  return static_cast<uint32_t>(state >> 32);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits for `done` without sleeping. False: not done within kSpin.
template <typename Condition>
bool SpinUntil(const Condition& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

ComputePool::ComputePool(uint32_t threads, const std::function<void()>& on_thread_start)
    : state_(kClosed), shares_(threads) {
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
  task_ = &task;
  count_ = count;
  const uint32_t run = RunOf(state_.load()) + 1;
  state_.store(uint64_t{run} << 32);
  if (parked_.load() > 0) WakeWorkers();
  TakeTasks(run, /*worker=*/0);
  state_.fetch_or(kClosed);
  WaitForWorkers();
  std::exception_ptr failure;
  {
    MutexLock lock(&mutex_);
    std::swap(failure, failure_);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

// All threads inside are of the same run, so that a share is either of this run or of an older one.
bool ComputePool::TakeTask(uint32_t run, uint32_t owner, size_t* index) {
  std::atomic<uint64_t>& begun = shares_[owner].begun;
  uint64_t seen = begun.load();
  while (true) {
    const uint64_t done = RunOf(seen) == run ? seen & kBegunMask : 0;
    *index = owner + done * threads();
    if (*index >= count_) return false;
    if (begun.compare_exchange_weak(seen, uint64_t{run} << 32 | (done + 1))) return true;
  }
}

void ComputePool::TakeTasks(uint32_t run, uint32_t worker) {
  try {
    for (uint32_t i = 0; i < threads(); ++i) {
      size_t index = 0;
      while (TakeTask(run, (worker + i) % threads(), &index)) (*task_)(index, worker);
    }
  } catch (...) {
    for (Share& share : shares_) share.begun.store(uint64_t{run} << 32 | kBegunMask);
    MutexLock lock(&mutex_);
    if (failure_ == nullptr) failure_ = std::current_exception();
  }
}

// False when that run is over or has not begun.
bool ComputePool::Enter(uint32_t run) {
  uint64_t state = state_.load();
  while (RunOf(state) == run && (state & kClosed) == 0) {
    if (state_.compare_exchange_weak(state, state + 1)) return true;
  }
  return false;
}

void ComputePool::WorkerLoop(uint32_t worker) {
  uint32_t last_run = 0;
  const auto has_news = [&] { return RunOf(state_.load()) != last_run || stop_.load(); };
  while (!stop_.load()) {
    if (!SpinUntil(has_news)) {
      parked_.fetch_add(1);
      MutexLock lock(&mutex_);
      while (!has_news()) wake_workers_.WaitFor(&mutex_, kParkedMax);
      parked_.fetch_sub(1);
    }
    last_run = RunOf(state_.load());
    if (!Enter(last_run)) continue;
    TakeTasks(last_run, worker);
    state_.fetch_sub(1);
    if (caller_parked_.load()) {
      MutexLock lock(&mutex_);
      wake_caller_.NotifyOne();
    }
  }
}

void ComputePool::WakeWorkers() {
  MutexLock lock(&mutex_);
  wake_workers_.NotifyAll();
}

void ComputePool::WaitForWorkers() {
  const auto all_out = [&] { return (state_.load() & kInsideMask) == 0; };
  if (SpinUntil(all_out)) return;
  caller_parked_.store(true);
  {
    MutexLock lock(&mutex_);
    while (!all_out()) wake_caller_.WaitFor(&mutex_, kParkedMax);
  }
  caller_parked_.store(false);
}

}  // namespace kvmesh::shard
