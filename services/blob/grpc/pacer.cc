#include "services/blob/grpc/pacer.h"

namespace kvmesh::blob {

absl::Status Pacer::Take(uint64_t bytes) {
  MutexLock lock(&mutex_);
  const MonoTime turn = pace_.Turn(bytes, clock_.Now());
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
