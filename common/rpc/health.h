// The standard health protocol as an ordinary service of ours, so that reflection can describe it.
// Two questions are answered: whether the process takes work ("" and its services' names), and, by
// the name "liveness", whether it is worth keeping: a process that loads, drains or waits for
// others is, one that hangs is not. Thread-safe.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/rpc/checked_service.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace kvmesh::rpc {

constexpr char kLivenessName[] = "liveness";

class HealthService final : public CheckedService<grpc::health::v1::Health> {
 public:
  HealthService();

  // Names other than these, "" and "liveness" are NOT_FOUND.
  void SetNames(std::vector<std::string> names);
  void SetServing(bool serving);
  // What "liveness" answers. True at the start.
  void SetAlive(bool alive);
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

  void PublishAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Known(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status StatusOf(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  bool alive_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::set<Watcher*> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::rpc
