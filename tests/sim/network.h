// A simulated network of Forward streams: each keeps the order of its messages in each direction,
// takes a while to deliver them, and breaks where a test says so.
//
// As with gRPC, the called side cannot tell a cancelled call from a lost link, and what was on its
// way when a link broke is lost, or, when a test wants it, comes late.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/forward/frames.h"
#include "tests/sim/event_queue.h"

namespace kvmesh::sim {

enum class StreamKey : uint64_t {};

struct CallerHandlers {
  std::function<void(forward::Answer)> on_answer;
  std::function<void(absl::Status)> on_end;
};
struct CalleeHandlers {
  std::function<void(StreamKey, forward::Frame)> on_frame;
  std::function<void(StreamKey)> on_lost;
};

enum class FaultKind { kCut, kCutLate, kKill };

// What befalls the n-th message that the network delivers.
struct Fault {
  size_t message = 0;
  bool after = false;  // the message still arrives, then the fault strikes
  FaultKind kind = FaultKind::kCut;
  size_t victim = 0;  // of kKill: index of the shard
};
std::string FaultName(const Fault& fault);

class Network {
 public:
  Network(EventQueue& events, std::function<absl::Duration()> latency)
      : events_(events), latency_(std::move(latency)) {}

  // Processes.
  void Listen(const std::string& address, CalleeHandlers handlers);
  // The process at `address` is gone: what it sent still arrives, then its streams break.
  void Kill(const std::string& address);

  // The calling side. `from` is the address of the caller, "" for a router.
  StreamKey Call(const std::string& from, const std::string& to, CallerHandlers handlers);
  void SendFrame(StreamKey key, forward::Frame frame);
  void Cancel(StreamKey key);

  // The called side.
  void SendAnswer(StreamKey key, forward::Answer answer);
  void Finish(StreamKey key, const absl::Status& status);

  void SetFaults(std::vector<Fault> faults, std::function<void(const Fault&)> on_fault,
                 std::function<void(size_t victim)> kill);
  size_t delivered() const { return delivered_; }
  size_t open_streams() const;

 private:
  struct Stream {
    std::string from;
    std::string to;
    CallerHandlers caller;
    bool caller_open = true;  // the caller still wants answers
    bool callee_open = true;  // the callee still wants frames
    bool finished = false;    // the callee ended it
    bool late = false;        // what is on its way down comes late
    bool opened = false;      // the first frame was sent
    bool closed = false;      // Close was sent
    MonoTime last_down;       // when the last frame arrives
    MonoTime last_up;
  };

  Stream& At(StreamKey key) { return streams_.at(key); }
  // Schedules so that the direction's order is kept.
  void InOrder(MonoTime& last, std::function<void()> action);
  void DeliverFrame(StreamKey key, forward::Frame frame);
  void DeliverAnswer(StreamKey key, forward::Answer answer);
  // Runs `deliver` with the fault of this message, if it has one, before or after.
  void WithFault(StreamKey key, const std::function<void()>& deliver);
  void Strike(const Fault& fault, StreamKey key, const std::function<void()>& deliver);
  void EndAtCaller(StreamKey key, const absl::Status& status);
  void LoseAtCallee(StreamKey key);

  EventQueue& events_;
  const std::function<absl::Duration()> latency_;
  std::map<std::string, CalleeHandlers> listeners_;
  std::map<StreamKey, Stream> streams_;
  uint64_t next_key_ = 1;

  std::vector<Fault> faults_;
  std::function<void(const Fault&)> on_fault_;
  std::function<void(size_t)> kill_;
  size_t delivered_ = 0;
};

}  // namespace kvmesh::sim
