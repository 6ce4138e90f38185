// The arbiter's end of AttachStore, in the hands of a test: it keeps what a store says, and says
// what the test wants. One stream at a time is looked at, the last one that began. Thread-safe;
// every wait is bounded.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "kvmesh/v1/meta.grpc.pb.h"

namespace kvmesh::testing {

class FakeArbiter {
 public:
  using Frame = v1::AttachStoreRequest;
  using Command = v1::AttachStoreResponse;

  // Listens on a free port, or on this one.
  explicit FakeArbiter(int port = 0);
  ~FakeArbiter();

  std::string address() const;
  int port() const { return port_; }

  // Every hello is answered with this incarnation; none: not answered.
  void WelcomeAs(std::optional<std::pair<uint64_t, std::string>> incarnation);
  // From now on streams are not read beyond their next frame.
  void StopReading();

  // While the stream is known to be open, as are the next two.
  void Send(Command command);
  void Welcome(uint64_t number, const std::string& id);
  // Ends the stream.
  void End(const grpc::Status& status);

  // Streams that began so far.
  int streams() const;
  bool WaitForStreams(int count) const;
  // What the last stream's store has said, in order.
  std::vector<Frame> Frames() const;
  // Whether a frame of which this holds came on the last stream.
  std::optional<Frame> WaitFor(const std::function<bool(const Frame&)>& holds) const;
  // The last page of an inventory has come.
  bool WaitForInventory() const;
  // All slabs of the last stream's inventory.
  std::vector<v1::SlabAnnouncement> Inventory() const;
  // The last stream has ended.
  bool WaitForEnd() const;

 private:
  class Stream;
  class Service;
  bool WaitUntil(const std::function<bool()>& condition) const;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::optional<std::pair<uint64_t, std::string>> welcome_ ABSL_GUARDED_BY(mutex_);
  bool reads_ ABSL_GUARDED_BY(mutex_) = true;
  int streams_ ABSL_GUARDED_BY(mutex_) = 0;
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null: none is open
  std::vector<Frame> frames_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace kvmesh::testing
