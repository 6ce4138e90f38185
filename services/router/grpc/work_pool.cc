#include "services/router/grpc/work_pool.h"

#include <utility>

namespace kvmesh::router {
namespace {

constexpr absl::Duration kWait = absl::Seconds(10);

}  // namespace

WorkPool::WorkPool(size_t threads, size_t queue_max) : queue_max_(queue_max) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkPool::~WorkPool() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool WorkPool::Submit(std::function<void()> work) {
  MutexLock lock(&mutex_);
  if (stopping_ || queue_.size() >= queue_max_) return false;
  queue_.push_back(std::move(work));
  wake_.NotifyOne();
  return true;
}

void WorkPool::Run() {
  for (;;) {
    std::function<void()> work;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) wake_.WaitFor(&mutex_, kWait);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace kvmesh::router
