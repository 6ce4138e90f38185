// How many transfers run at once. Pure; not thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace kvmesh::blob {

class TransferGate {
 public:
  explicit TransferGate(uint32_t transfers_max) : transfers_max_(transfers_max) {}

  // ResourceExhausted QUEUE_FULL with a retry delay: as many as allowed are running. Every success
  // is followed by one Leave.
  absl::Status Enter();
  void Leave() { --running_; }
  uint32_t running() const { return running_; }

 private:
  const uint32_t transfers_max_;
  uint32_t running_ = 0;
};

}  // namespace kvmesh::blob
