// How many generations run at once, and who waits for a place: first in, first out, bounded. Pure;
// not thread-safe. Invariants: nobody waits while a place is free; running() <= running_max,
// queued() <= queue_max.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>

#include "absl/status/statusor.h"
#include "common/base/ids.h"

namespace kvmesh::router {

class AdmissionQueue {
 public:
  AdmissionQueue(uint32_t running_max, uint32_t queue_max)
      : running_max_(running_max), queue_max_(queue_max) {}

  enum class Place { kRunning, kQueued };
  // ResourceExhausted QUEUE_FULL, with the delay after which a repeat may find a place.
  absl::StatusOr<Place> Enter(const SessionId& id);

  // `id` has ended, wherever it was (unknown ids are ignored). The one that takes its place, if
  // any, is running now.
  std::optional<SessionId> Leave(const SessionId& id);

  size_t running() const { return running_.size(); }
  size_t queued() const { return queue_.size(); }

 private:
  const uint32_t running_max_;
  const uint32_t queue_max_;
  std::set<SessionId> running_;
  std::deque<SessionId> queue_;
};

}  // namespace kvmesh::router
