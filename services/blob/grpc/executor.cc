#include "services/blob/grpc/executor.h"

#include <utility>

namespace kvmesh::blob {
namespace {

constexpr absl::Duration kIdleWait = absl::Seconds(60);

}  // namespace

Executor::Executor(uint32_t threads, size_t queue_max) : queue_max_(queue_max) {
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

Executor::~Executor() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  work_came_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool Executor::Submit(std::function<void()> work) {
  {
    MutexLock lock(&mutex_);
    if (queue_.size() >= queue_max_) return false;
    queue_.push_back(std::move(work));
  }
  work_came_.NotifyOne();
  return true;
}

void Executor::Run() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) work_came_.WaitFor(&mutex_, kIdleWait);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace kvmesh::blob
