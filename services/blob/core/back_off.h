// How long to wait before the next attempt: doubles from one failure to the next, up to a limit,
// and is spread, so that stores that lost one arbiter do not come back all at once. Pure; not
// thread-safe.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace kvmesh::blob {

class BackOff {
 public:
  BackOff(absl::Duration first, absl::Duration longest)
      : first_(first), longest_(longest), next_(first) {}

  // `spread`: evenly from [0, 1). Between a half and all of the current delay.
  absl::Duration Next(double spread) {
    const absl::Duration delay = next_ * (0.5 + spread / 2);
    next_ = std::min(next_ * 2, longest_);
    return delay;
  }
  // The attempt worked: the next failure is a first one.
  void Reset() { next_ = first_; }

 private:
  const absl::Duration first_;
  const absl::Duration longest_;
  absl::Duration next_;
};

}  // namespace kvmesh::blob
