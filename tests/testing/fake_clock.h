// A clock that stands still until a test moves it. Thread-safe.
#pragma once

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace kvmesh::testing {

class FakeClock final : public Clock {
 public:
  explicit FakeClock(MonoTime start = absl::Seconds(1000)) : now_(start) {}

  MonoTime Now() const override {
    MutexLock lock(&mutex_);
    return now_;
  }
  void Advance(absl::Duration step) {
    MutexLock lock(&mutex_);
    now_ += step;
  }

 private:
  mutable Mutex mutex_;
  MonoTime now_ ABSL_GUARDED_BY(mutex_);
};

// The real clock, which a test can push forward: waits of real threads go on, TTLs can be skipped.
// Thread-safe.
class ShiftedClock final : public Clock {
 public:
  MonoTime Now() const override { return real_.Now() + shift_.Now(); }
  void Advance(absl::Duration step) { shift_.Advance(step); }

 private:
  MonotonicClock real_;
  FakeClock shift_{absl::ZeroDuration()};
};

}  // namespace kvmesh::testing
