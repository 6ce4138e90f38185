// A few threads that do blocking work in the order it came. Bounded; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace kvmesh::shard {

class CheckpointQueue {
 public:
  // Called once, with false when there is no time left to do it: the queue was stopped before.
  using Work = std::function<void(bool run)>;

  CheckpointQueue(uint32_t threads, size_t waiting_max);
  ~CheckpointQueue() { Stop(); }
  CheckpointQueue(const CheckpointQueue&) = delete;
  CheckpointQueue& operator=(const CheckpointQueue&) = delete;

  // False: the queue is full or stopped; the work was not taken.
  bool Submit(Work work);
  // Gives up what waits and joins what runs. Idempotent.
  void Stop();

 private:
  void Run();

  const size_t waiting_max_;
  Mutex mutex_;
  CondVar work_came_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace kvmesh::shard
