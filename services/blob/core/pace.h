// When reading may go on, so that it keeps to a rate: each read is waited for until all that was
// read before it is paid for. Time without reads earns nothing. Pure; not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/clock.h"

namespace kvmesh::blob {

class Pace {
 public:
  // `bytes_per_second` is above 0.
  explicit Pace(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // When `bytes` more may be read, which are read then: now, or later.
  MonoTime Turn(uint64_t bytes, MonoTime now) {
    const MonoTime turn = std::max(paid_, now);
    paid_ =
        turn + absl::Seconds(static_cast<double>(bytes) / static_cast<double>(bytes_per_second_));
    return turn;
  }

 private:
  const uint64_t bytes_per_second_;
  MonoTime paid_ = absl::ZeroDuration();  // until then
};

}  // namespace kvmesh::blob
