// A bounded wait for what is told to nobody.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "absl/time/time.h"

namespace kvmesh::testing {

// True as soon as `condition` is, which is asked again and again; false after `timeout`.
inline bool WaitUntil(const std::function<bool()>& condition,
                      absl::Duration timeout = absl::Seconds(60)) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace kvmesh::testing
