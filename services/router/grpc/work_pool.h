// A few threads for work that is too long for a reaction: tokenising, rendering. Bounded;
// thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace kvmesh::router {

class WorkPool {
 public:
  WorkPool(size_t threads, size_t queue_max);
  // Runs what is queued, then ends.
  ~WorkPool();

  // False: the queue is full, `work` will not run.
  bool Submit(std::function<void()> work);

 private:
  void Run();

  const size_t queue_max_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace kvmesh::router
