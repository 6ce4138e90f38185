// Virtual time: things happen at set times, in order, on one thread. Equal times keep the order in
// which they were asked for, so that a run is a function of its inputs alone.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "common/base/clock.h"

namespace kvmesh::sim {

class EventQueue {
 public:
  MonoTime now() const { return now_; }

  void After(absl::Duration delay, std::function<void()> action) {
    events_.push({now_ + delay, next_serial_++, std::move(action)});
  }

  // Runs what is due up to `until`, or until `stop` says so; then time stands at the last event, or
  // at `until`. False: more than `events_max` events, which only a loop without a delay makes.
  bool RunUntil(MonoTime until, size_t events_max, const std::function<bool()>& stop) {
    for (size_t ran = 0; ran < events_max; ++ran) {
      if (stop()) return true;
      if (events_.empty() || events_.top().time > until) {
        now_ = until;
        return true;
      }
      // The action may add events, so it leaves the queue first; top() is const only to protect
      // the order, which moving the action out does not touch.
      std::function<void()> action = std::move(const_cast<Event&>(events_.top()).action);
      now_ = events_.top().time;
      events_.pop();
      action();
    }
    return false;
  }

 private:
  struct Event {
    MonoTime time;
    uint64_t serial;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return std::pair(other.time, other.serial) < std::pair(time, serial);
    }
  };

  MonoTime now_ = absl::Seconds(100);
  uint64_t next_serial_ = 0;
  std::priority_queue<Event> events_;
};

}  // namespace kvmesh::sim
