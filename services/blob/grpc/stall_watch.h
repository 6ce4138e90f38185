// Cuts off transfers whose client neither sends nor reads: looks at every one several times within
// the timeout. Thread-safe.
#pragma once

#include <set>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace kvmesh::blob {

class Stallable {
 public:
  virtual ~Stallable() = default;
  // Called with no lock held, never after Unwatch has returned. Ends the call when its client has
  // been waited for since before `oldest`, or when nobody wants its result any more.
  virtual void EndIfStalled(MonoTime oldest) = 0;
};

class StallWatch {
 public:
  StallWatch(const Clock& clock, absl::Duration timeout);
  ~StallWatch();

  void Watch(Stallable* call);
  // Waits for a check of it that is running.
  void Unwatch(Stallable* call);
  MonoTime Now() const { return clock_.Now(); }

 private:
  void Run();
  void CheckAll();

  const Clock& clock_;
  const absl::Duration timeout_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<Stallable*> calls_ ABSL_GUARDED_BY(mutex_);
  Stallable* checked_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace kvmesh::blob
