// Holds reading to a rate, so that verification does not starve the transfers. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "services/blob/core/pace.h"

namespace kvmesh::blob {

class Pacer {
 public:
  Pacer(const Clock& clock, uint64_t bytes_per_second) : clock_(clock), pace_(bytes_per_second) {}

  // Waits until `bytes` more may be read. Cancelled: Stop was called.
  absl::Status Take(uint64_t bytes);
  void Stop();

 private:
  const Clock& clock_;
  Mutex mutex_;
  CondVar stopped_changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Pace pace_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::blob
