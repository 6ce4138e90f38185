#include "tests/sim/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh::sim {
namespace {

// Longer than a router takes to come back with the next attempt.
constexpr absl::Duration kLate = absl::Milliseconds(6);

absl::Status LinkLost() {
  return absl::UnavailableError("the link was lost");
}

}  // namespace

std::string FaultName(const Fault& fault) {
  const std::string kind = fault.kind == FaultKind::kCut ? "cut"
                           : fault.kind == FaultKind::kCutLate
                               ? "cut, frames late"
                               : absl::StrCat("kill ", fault.victim);
  return absl::StrCat(kind, fault.after ? " after " : " before ", "message ", fault.message);
}

void Network::Listen(const std::string& address, CalleeHandlers handlers) {
  listeners_[address] = std::move(handlers);
}

void Network::Kill(const std::string& address) {
  listeners_.erase(address);
  for (auto& [key, stream] : streams_) {
    if (stream.to == address && stream.callee_open) {
      stream.callee_open = false;
      InOrder(stream.last_up, [this, key = key] { EndAtCaller(key, LinkLost()); });
    }
    if (stream.from == address && stream.caller_open) {
      stream.caller_open = false;
      InOrder(stream.last_down, [this, key = key] { LoseAtCallee(key); });
    }
  }
}

StreamKey Network::Call(const std::string& from, const std::string& to, CallerHandlers handlers) {
  const StreamKey key{next_key_++};
  streams_[key] = {.from = from, .to = to, .caller = std::move(handlers)};
  if (listeners_.find(to) == listeners_.end()) {
    At(key).callee_open = false;
    InOrder(At(key).last_up, [this, key] { EndAtCaller(key, LinkLost()); });
  }
  return key;
}

void Network::SendFrame(StreamKey key, forward::Frame frame) {
  Stream& stream = At(key);
  if (std::holds_alternative<forward::Open>(frame) == stream.opened || stream.closed) {
    ADD_FAILURE() << "an Open that is not the first frame, or a frame after Close";
  }
  stream.opened = true;
  stream.closed = std::holds_alternative<forward::Close>(frame);
  // A shared pointer because std::function copies what it holds.
  auto shared = std::make_shared<forward::Frame>(std::move(frame));
  InOrder(stream.last_down, [this, key, shared] {
    if (!At(key).callee_open) return;
    const auto deliver = [this, key, shared] { DeliverFrame(key, std::move(*shared)); };
    if (At(key).late) {
      InOrder(At(key).last_down, deliver);
    } else {
      WithFault(key, deliver);
    }
  });
}

void Network::Cancel(StreamKey key) {
  At(key).caller_open = false;
  InOrder(At(key).last_down, [this, key] { LoseAtCallee(key); });
}

void Network::SendAnswer(StreamKey key, forward::Answer answer) {
  auto shared = std::make_shared<forward::Answer>(std::move(answer));
  InOrder(At(key).last_up, [this, key, shared] {
    if (At(key).caller_open) {
      WithFault(key, [this, key, shared] { DeliverAnswer(key, std::move(*shared)); });
    }
  });
}

void Network::Finish(StreamKey key, const absl::Status& status) {
  if (At(key).finished) ADD_FAILURE() << "a stream was ended twice: " << status;
  At(key).finished = true;
  At(key).callee_open = false;
  InOrder(At(key).last_up, [this, key, status] { EndAtCaller(key, status); });
}

void Network::SetFaults(std::vector<Fault> faults, std::function<void(const Fault&)> on_fault,
                        std::function<void(size_t)> kill) {
  faults_ = std::move(faults);
  on_fault_ = std::move(on_fault);
  kill_ = std::move(kill);
}

size_t Network::open_streams() const {
  return std::count_if(streams_.begin(), streams_.end(), [](const auto& item) {
    return item.second.caller_open || item.second.callee_open;
  });
}

void Network::InOrder(MonoTime& last, std::function<void()> action) {
  last = std::max(last, events_.now() + latency_());
  events_.After(last - events_.now(), std::move(action));
}

void Network::DeliverFrame(StreamKey key, forward::Frame frame) {
  if (!At(key).callee_open) return;
  auto listener = listeners_.find(At(key).to);
  if (listener != listeners_.end()) listener->second.on_frame(key, std::move(frame));
}

void Network::DeliverAnswer(StreamKey key, forward::Answer answer) {
  if (At(key).caller_open) At(key).caller.on_answer(std::move(answer));
}

void Network::WithFault(StreamKey key, const std::function<void()>& deliver) {
  const size_t number = delivered_++;
  const auto fault = std::find_if(faults_.begin(), faults_.end(),
                                  [&](const Fault& f) { return f.message == number; });
  if (fault == faults_.end()) {
    deliver();
    return;
  }
  if (fault->after) deliver();
  on_fault_(*fault);
  Strike(*fault, key, fault->after ? [] {} : deliver);
}

void Network::Strike(const Fault& fault, StreamKey key, const std::function<void()>& deliver) {
  if (fault.kind == FaultKind::kKill) {
    kill_(fault.victim);
    // Not the victim's own message: it arrives all the same.
    deliver();
    return;
  }
  if (fault.kind == FaultKind::kCutLate) {
    // Only the caller notices at once. The callee gets this frame, those behind it and the loss
    // when the caller may already be back with the next attempt.
    Stream& stream = At(key);
    stream.late = true;
    stream.last_down = std::max(stream.last_down, events_.now() + kLate);
    InOrder(stream.last_down, deliver);
    events_.After(2 * kLate, [this, key] { LoseAtCallee(key); });
  } else {
    LoseAtCallee(key);
  }
  EndAtCaller(key, LinkLost());
}

void Network::EndAtCaller(StreamKey key, const absl::Status& status) {
  if (!At(key).caller_open) return;
  At(key).caller_open = false;
  At(key).caller.on_end(status);
}

void Network::LoseAtCallee(StreamKey key) {
  if (!At(key).callee_open) return;
  At(key).callee_open = false;
  auto listener = listeners_.find(At(key).to);
  if (listener != listeners_.end()) listener->second.on_lost(key);
}

}  // namespace kvmesh::sim
