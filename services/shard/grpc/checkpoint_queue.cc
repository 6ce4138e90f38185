#include "services/shard/grpc/checkpoint_queue.h"

#include <utility>

namespace kvmesh::shard {
namespace {

constexpr absl::Duration kWakeUp = absl::Seconds(1);

}  // namespace

CheckpointQueue::CheckpointQueue(uint32_t threads, size_t waiting_max) : waiting_max_(waiting_max) {
  threads_.reserve(threads);
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

bool CheckpointQueue::Submit(Work work) {
  MutexLock lock(&mutex_);
  if (stopping_ || waiting_.size() >= waiting_max_) return false;
  waiting_.push_back(std::move(work));
  work_came_.NotifyOne();
  return true;
}

void CheckpointQueue::Stop() {
  std::deque<Work> given_up;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    given_up.swap(waiting_);
    work_came_.NotifyAll();
  }
  for (const Work& work : given_up) work(false);
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void CheckpointQueue::Run() {
  for (;;) {
    Work work;
    {
      MutexLock lock(&mutex_);
      while (waiting_.empty() && !stopping_) work_came_.WaitFor(&mutex_, kWakeUp);
      if (stopping_) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work(true);
  }
}

}  // namespace kvmesh::shard
