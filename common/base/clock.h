// Time as an argument: cores take a MonoTime, adapters read it from a Clock, tests move a fake one
// by hand.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace kvmesh {

// A point on the monotonic clock, as the time since an arbitrary start. Never sent over the wire.
using MonoTime = absl::Duration;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual MonoTime Now() const = 0;
};

class MonotonicClock final : public Clock {
 public:
  MonoTime Now() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace kvmesh
