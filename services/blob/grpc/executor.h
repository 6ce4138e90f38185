// A few threads that do blocking work, in the order it came. Bounded: a full queue refuses.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace kvmesh::blob {

// Thread-safe. The destructor runs what is queued and joins.
class Executor {
 public:
  Executor(uint32_t threads, size_t queue_max);
  ~Executor();

  // False: the queue is full; the work was not taken.
  bool Submit(std::function<void()> work);

 private:
  void Run();

  const size_t queue_max_;
  Mutex mutex_;
  CondVar work_came_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace kvmesh::blob
