#include "services/router/grpc/work_pool.h"

#include <algorithm>
#include <utility>

namespace kvmesh::router {
namespace {

constexpr absl::Duration kWait = absl::Seconds(10);

}  // namespace

WorkPool::WorkPool(const WorkPoolOptions& options) : options_(options) {
  const size_t threads = std::max<size_t>(options_.threads, 2);
  threads_.reserve(threads);
  for (size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this, short_only = i == 0] { Run(short_only); });
  }
}

WorkPool::~WorkPool() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool WorkPool::Submit(size_t request_bytes, std::function<void()> work) {
  const bool is_long = request_bytes > options_.long_bytes;
  MutexLock lock(&mutex_);
  Queue& queue = is_long ? long_ : short_;
  if (stopping_ || queue.size() >= (is_long ? options_.long_queue_max : options_.short_queue_max)) {
    return false;
  }
  queue.push_back(std::move(work));
  wake_.NotifyAll();  // the one thread woken might be the one that takes no long work
  return true;
}

// Long work first: short work has a thread of its own, so neither waits for ever.
WorkPool::Queue* WorkPool::Choose(bool short_only) {
  if (!short_only && !long_.empty()) return &long_;
  return short_.empty() ? nullptr : &short_;
}

void WorkPool::Run(bool short_only) {
  for (;;) {
    std::function<void()> work;
    {
      MutexLock lock(&mutex_);
      Queue* queue = Choose(short_only);
      while (queue == nullptr && !stopping_) {
        wake_.WaitFor(&mutex_, kWait);
        queue = Choose(short_only);
      }
      if (queue == nullptr) return;
      work = std::move(queue->front());
      queue->pop_front();
    }
    work();
  }
}

}  // namespace kvmesh::router
