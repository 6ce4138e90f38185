// A few threads for work that is too much for a reaction: tokenising, rendering. Work over a long
// text has a queue of its own and never takes the first thread, so that short work gets on however
// many long texts wait. Bounded; thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace kvmesh::router {

struct WorkPoolOptions {
  size_t threads = 2;  // at least 2: one for short work alone
  size_t short_queue_max = 1024;
  size_t long_queue_max = 32;    // each may hold a request of megabytes
  size_t long_bytes = 64 << 10;  // requests of more bytes than that are long work
};

class WorkPool {
 public:
  explicit WorkPool(const WorkPoolOptions& options);
  // Runs what is queued, then ends.
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // `request_bytes`: the size of what is worked on. False: the queue is full, `work` will not run.
  bool Submit(size_t request_bytes, std::function<void()> work);

 private:
  using Queue = std::deque<std::function<void()>>;

  void Run(bool short_only);
  // The queue to take from next; null: there is nothing for this thread.
  Queue* Choose(bool short_only) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const WorkPoolOptions options_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Queue short_ ABSL_GUARDED_BY(mutex_);
  Queue long_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace kvmesh::router
