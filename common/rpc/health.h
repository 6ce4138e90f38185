// The standard health protocol as an ordinary service of ours, so that reflection can describe it.
// Thread-safe.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace kvmesh::rpc {

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // Names other than these and "" are NOT_FOUND.
  void SetNames(std::vector<std::string> names);
  void SetServing(bool serving);
  // Ends every Watch, so that the server can shut down.
  void Stop();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class Watcher;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  bool Known(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status StatusOf(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::set<Watcher*> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::rpc
