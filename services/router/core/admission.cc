#include "services/router/core/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"

namespace kvmesh::router {
namespace {

constexpr absl::Duration kRetryDelayFirst = absl::Seconds(1);
constexpr absl::Duration kRetryDelayMax = absl::Seconds(30);

}  // namespace

absl::StatusOr<AdmissionQueue::Place> AdmissionQueue::Enter(const SessionId& id) {
  if (running_.size() < running_max_) {
    running_.insert(id);
    return Place::kRunning;
  }
  if (queue_.size() < queue_max_) {
    queue_.push_back(id);
    return Place::kQueued;
  }
  const auto rounds = static_cast<int64_t>(queue_.size() / std::max<size_t>(running_max_, 1));
  return WithRetryDelay(
      WithErrorInfo(absl::ResourceExhaustedError(absl::StrCat(
                        running_.size(), " generations run and ", queue_.size(), " wait; at most ",
                        running_max_, " and ", queue_max_, " are allowed")),
                    {.reason = std::string(reason::kQueueFull)}),
      std::min(kRetryDelayFirst * (1 + rounds), kRetryDelayMax));
}

std::optional<SessionId> AdmissionQueue::Leave(const SessionId& id) {
  if (running_.erase(id) == 0) {
    queue_.erase(std::remove(queue_.begin(), queue_.end(), id), queue_.end());
    return std::nullopt;
  }
  if (queue_.empty()) return std::nullopt;
  const SessionId next = queue_.front();
  queue_.pop_front();
  running_.insert(next);
  return next;
}

}  // namespace kvmesh::router
