#include "services/blob/grpc/stall_watch.h"

#include <algorithm>

namespace kvmesh::blob {
namespace {

constexpr absl::Duration kStepMin = absl::Milliseconds(10);
constexpr absl::Duration kRecheck = absl::Seconds(1);

}  // namespace

StallWatch::StallWatch(const Clock& clock, absl::Duration timeout)
    : clock_(clock), timeout_(timeout), thread_([this] { Run(); }) {}

StallWatch::~StallWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void StallWatch::Watch(Stallable* call) {
  MutexLock lock(&mutex_);
  calls_.insert(call);
}

void StallWatch::Unwatch(Stallable* call) {
  MutexLock lock(&mutex_);
  calls_.erase(call);
  while (checked_ == call) changed_.WaitFor(&mutex_, kRecheck);
}

void StallWatch::Run() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (!stopping_) changed_.WaitFor(&mutex_, std::max(kStepMin, timeout_ / 4));
      if (stopping_) return;
    }
    CheckAll();
  }
}

void StallWatch::CheckAll() {
  const MonoTime oldest = clock_.Now() - timeout_;
  Stallable* last = nullptr;
  while (true) {
    Stallable* call = nullptr;
    {
      MutexLock lock(&mutex_);
      // Calls come and go meanwhile; the order of the set leads past those already seen.
      const auto next = calls_.upper_bound(last);
      if (next == calls_.end() || stopping_) return;
      call = *next;
      checked_ = call;
    }
    call->EndIfStalled(oldest);
    {
      MutexLock lock(&mutex_);
      checked_ = nullptr;
    }
    changed_.NotifyAll();
    last = call;
  }
}

}  // namespace kvmesh::blob
