// What a store has to say to the arbiter, in the order in which it happened. Bounded: when the
// arbiter does not keep up, the stream is given up, and the next inventory says all at once.
// Pure; not thread-safe: MetaLink owns it under its mutex.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>

#include "services/blob/core/slab_name.h"

namespace kvmesh::blob {

// A slab was published, or the arbiter asked about it. Its facts are looked up when it is said.
struct SlabHere {
  SlabName name;
  bool asked = false;
};
struct SlabGone {
  enum class Cause { kDeleted, kQuarantined, kOther };
  SlabName name;
  Cause cause = Cause::kOther;
};
struct SlabChecked {
  SlabName name;
  bool sound = false;
};
struct SlabText {
  uint64_t request = 0;
  std::optional<std::string> text;  // none: no such slab
};
using News = std::variant<SlabHere, SlabGone, SlabChecked, SlabText>;

class NewsQueue {
 public:
  explicit NewsQueue(size_t count_max) : count_max_(count_max) {}

  // Ignored after a refusal, until Clear.
  void Push(News news) {
    if (overflowed_ || queue_.size() == count_max_) {
      overflowed_ = true;
      return;
    }
    queue_.push_back(std::move(news));
  }
  std::optional<News> Pop() {
    if (queue_.empty()) return std::nullopt;
    News first = std::move(queue_.front());
    queue_.pop_front();
    return first;
  }
  bool empty() const { return queue_.empty(); }
  // Something could not be kept.
  bool overflowed() const { return overflowed_; }
  void Clear() {
    queue_.clear();
    overflowed_ = false;
  }

 private:
  const size_t count_max_;
  std::deque<News> queue_;
  bool overflowed_ = false;
};

}  // namespace kvmesh::blob
