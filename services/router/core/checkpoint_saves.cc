#include "services/router/core/checkpoint_saves.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"

namespace kvmesh::router {
namespace {

constexpr size_t kWritesMax = 8;
constexpr MetaCall kEnded{0};  // no call has this number

// Why the arbiter gave no reservation: its reason in lower case where it gives one.
std::string RefusalName(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  switch (status.code()) {
    case absl::StatusCode::kAlreadyExists:
      return "already_exists";
    case absl::StatusCode::kAborted:
      return reason == "DELETING" ? "deleting" : "being_written";
    case absl::StatusCode::kResourceExhausted:
      if (reason == reason::kTooLarge) return "too_large";
      if (reason == "QUOTA") return "quota";
      return reason == reason::kNoRoom ? "no_room" : "meta_busy";
    case absl::StatusCode::kUnavailable:
      return reason == "NO_STORE" ? "no_store" : "meta_unavailable";
    case absl::StatusCode::kDeadlineExceeded:
      return "meta_unavailable";
    default:
      return "refused";
  }
}

}  // namespace

void CheckpointSaves::Reserve(const SaveOrder& order, const RoutePlan& route,
                              const std::string& tier) {
  if (std::find(ordered_.begin(), ordered_.end(), order.key) != ordered_.end()) return;
  if (writes_.size() >= kWritesMax) return Skip(order.reason, "too_many");
  ordered_.push_back(order.key);
  Write write{.order = order, .call = ids_.NextCall(), .request = ids_.NextRequest()};
  ReserveRow effect{.call = write.call,
                    .request = write.request,
                    .cache_namespace = route.cache_namespace,
                    .key = order.key,
                    .reason = order.reason,
                    .tier = tier,
                    .timeout = options_.reserve_wait};
  for (size_t i = 0; i < route.hops.size(); ++i) {
    const LayerRange& layers = route.hops[i].layers;
    write.ranges.push_back(layers);
    effect.ranges.emplace_back(
        layers, SlabBytesMax(route.state_bytes[i], layers, order.at_tokens, order.text_bytes,
                             route.hidden_size, options_.gates));
  }
  writes_.push_back(std::move(write));
  effects_.emplace_back(std::move(effect));
}

void CheckpointSaves::Skip(forward::SaveReason reason, const std::string& why) {
  effects_.emplace_back(SaveEnded{reason, why});
}

void CheckpointSaves::OnReserved(MetaCall call, const absl::StatusOr<Reservation>& reserved) {
  const auto write = std::find_if(writes_.begin(), writes_.end(),
                                  [call](const Write& one) { return one.call == call; });
  if (write == writes_.end()) return;
  if (write->state == State::kAbandoned) {
    effects_.emplace_back(CancelReservation{write->request});
    writes_.erase(write);
    return;
  }
  if (write->state != State::kReserving) return;
  if (!reserved.ok()) {
    // Without an answer there may be a reservation all the same.
    if (absl::IsDeadlineExceeded(reserved.status())) {
      effects_.emplace_back(CancelReservation{write->request});
    }
    End(*write, RefusalName(reserved.status()));
    writes_.erase(write);
    return;
  }
  write->write_id = reserved->write_id;
  for (const LayerRange& range : write->ranges) {
    const auto store = std::find_if(reserved->stores.begin(), reserved->stores.end(),
                                    [&range](const auto& one) { return one.first == range; });
    if (store == reserved->stores.end()) {
      Drop(*write, "refused");
      writes_.erase(write);
      return;
    }
    write->stores.push_back(store->second);
  }
  write->state = State::kReserved;
}

std::vector<forward::Save> CheckpointSaves::TakeReady(absl::Span<const forward::HopRef> hops,
                                                      uint64_t sent_tokens) {
  std::vector<forward::Save> ready;
  const auto same_ranges = [hops](const Write& write) {
    return std::equal(
        hops.begin(), hops.end(), write.ranges.begin(), write.ranges.end(),
        [](const forward::HopRef& hop, const LayerRange& range) { return hop.layers == range; });
  };
  for (Write& write : writes_) {
    const bool unsent = write.state == State::kReserving || write.state == State::kReserved;
    if (!unsent) continue;
    if (!same_ranges(write)) {
      Drop(write, "route_changed");
    } else if (write.order.exact && sent_tokens > write.order.at_tokens) {
      Drop(write, "late");
    } else if (write.state == State::kReserved && sent_tokens >= write.order.at_tokens) {
      forward::Save save{.at_tokens = write.order.at_tokens,
                         .write_id = write.write_id,
                         .reason = write.order.reason,
                         .targets = {}};
      for (uint32_t hop = 0; hop < hops.size(); ++hop) {
        save.targets.emplace_back(hop, write.stores[hop]);
      }
      ready.push_back(std::move(save));
      write.state = State::kSent;
      write.answered.assign(hops.size(), false);
    }
  }
  RemoveEnded();
  return ready;
}

std::optional<uint64_t> CheckpointSaves::NextEdge(uint64_t sent_tokens) const {
  std::optional<uint64_t> edge;
  for (const Write& write : writes_) {
    const bool unsent = write.state == State::kReserving || write.state == State::kReserved;
    if (!unsent || !write.order.exact || write.order.at_tokens <= sent_tokens) continue;
    edge = std::min(edge.value_or(write.order.at_tokens), write.order.at_tokens);
  }
  return edge;
}

void CheckpointSaves::OnSaveState(const forward::SaveState& state) {
  const auto write = std::find_if(writes_.begin(), writes_.end(), [&state](const Write& one) {
    return one.state == State::kSent && one.write_id == state.write_id;
  });
  if (write == writes_.end() || state.hop_index >= write->answered.size()) return;
  if (state.state == forward::SaveState::State::kDropped) {
    Drop(*write, absl::StrCat("dropped:", state.cause));
    writes_.erase(write);
    return;
  }
  write->answered[state.hop_index] = true;
  if (std::find(write->answered.begin(), write->answered.end(), false) != write->answered.end()) {
    return;
  }
  End(*write, "started");
  writes_.erase(write);
}

void CheckpointSaves::OnStreamEnd() {
  // Hops that got the Save write on without the router; the rest lapses.
  for (Write& write : writes_) {
    if (write.state != State::kSent) continue;
    End(write, "stream_lost");
    write.call = kEnded;
  }
  RemoveEnded();
}

void CheckpointSaves::CancelUnsent() {
  for (Write& write : writes_) {
    const bool unsent = write.state == State::kReserving || write.state == State::kReserved;
    if (unsent) Drop(write, "ended");
  }
  RemoveEnded();
}

bool CheckpointSaves::reserving() const {
  return std::any_of(writes_.begin(), writes_.end(),
                     [](const Write& one) { return one.state == State::kReserving; });
}

std::vector<WriteId> CheckpointSaves::Held() const {
  std::vector<WriteId> held;
  for (const Write& write : writes_) {
    if (write.state == State::kReserved || write.state == State::kSent) {
      held.push_back(write.write_id);
    }
  }
  return held;
}

void CheckpointSaves::End(const Write& write, const std::string& result) {
  effects_.emplace_back(SaveEnded{write.order.reason, result});
}

void CheckpointSaves::Drop(Write& write, const std::string& result) {
  End(write, result);
  if (write.state == State::kReserving) {
    write.state = State::kAbandoned;  // cancelled when the answer is here: not before it is made
    return;
  }
  effects_.emplace_back(CancelReservation{write.request});
  write.call = kEnded;
}

void CheckpointSaves::RemoveEnded() {
  writes_.erase(std::remove_if(writes_.begin(), writes_.end(),
                               [](const Write& one) { return one.call == kEnded; }),
                writes_.end());
}

}  // namespace kvmesh::router
