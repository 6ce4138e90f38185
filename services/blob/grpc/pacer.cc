#include "services/blob/grpc/pacer.h"

#include <algorithm>

namespace kvmesh::blob {

absl::Status Pacer::Take(uint64_t bytes) {
  MutexLock lock(&mutex_);
  const MonoTime turn = std::max(free_at_, clock_.Now());
  free_at_ =
      turn + absl::Seconds(static_cast<double>(bytes) / static_cast<double>(bytes_per_second_));
  while (!stopped_) {
    const absl::Duration wait = turn - clock_.Now();
    if (wait <= absl::ZeroDuration()) return absl::OkStatus();
    stopped_changed_.WaitFor(&mutex_, wait);
  }
  return absl::CancelledError("the store is stopping");
}

void Pacer::Stop() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  stopped_changed_.NotifyAll();
}

}  // namespace kvmesh::blob
