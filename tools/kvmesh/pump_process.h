// The pump's server as a child process, and connections to it.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/kvmesh/child.h"
#include "tools/kvmesh/interrupt.h"

namespace kvmesh::cli {

// Not thread-safe. The server ends with this object.
class PumpProcess {
 public:
  // `folder` exists or can be made; the server's log and address go there. Unavailable: it does not
  // start within a minute. Cancelled: interrupted.
  static absl::StatusOr<PumpProcess> Start(const std::string& folder, Interrupt& interrupt);
  ~PumpProcess();
  PumpProcess(PumpProcess&&) = default;
  PumpProcess& operator=(PumpProcess&&) = delete;

  // Milliseconds that `connections` at once take for `bytes` each. The statuses of the calls.
  absl::StatusOr<double> Pull(int connections, uint64_t bytes);

 private:
  explicit PumpProcess(Child server) { server_.push_back(std::move(server)); }

  std::vector<Child> server_;  // one; none once it was moved from
  std::string address_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
};

}  // namespace kvmesh::cli
