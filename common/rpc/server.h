// A gRPC server as every kvmesh service runs it: its own services, health, reflection, limits,
// keepalive, a second plaintext port with health only (kubelet presents no client certificate), and
// /metrics. Order of calls: Start, SetServing(true) once the service can work, Shutdown.
// Thread-safe.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"

namespace kvmesh::rpc {

class HealthService;
class TlsIdentity;

struct ServerOptions {
  std::string listen;          // host:port; port 0: any free one
  std::string health_listen;   // empty: none
  std::string metrics_listen;  // empty: none
  // A connection older than that is closed softly: its calls go on, new ones open another, which
  // may reach another process behind the same name. Infinite: never.
  absl::Duration connection_age = absl::InfiniteDuration();
  // Shared with gRPC, and with the channels of the same process. Null: plaintext. Health for probes
  // and metrics are plaintext either way.
  std::shared_ptr<TlsIdentity> tls;
};

// A service and its full proto name, under which health knows it.
struct NamedService {
  std::string name;
  grpc::Service* service;
};

class RpcServer {
 public:
  // Services must outlive the server. Unavailable: an address cannot be bound (it is named).
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const ServerOptions& options,
                                                          const std::vector<NamedService>& services,
                                                          metrics::Metrics& metrics);
  ~RpcServer();

  // What health answers, for the whole process and for every service by name. False at the start.
  void SetServing(bool serving);
  // What health answers for "liveness". True at the start.
  void SetAlive(bool alive);

  int port() const { return port_; }
  int health_port() const { return health_port_; }    // 0: none
  int metrics_port() const { return metrics_port_; }  // 0: none

  // Refuses new calls, lets running ones end for `grace`, then cancels them. Idempotent.
  void Shutdown(absl::Duration grace);

 private:
  RpcServer();

  std::unique_ptr<HealthService> health_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::Server> health_server_;
  std::unique_ptr<metrics::MetricsServer> metrics_server_;
  int port_ = 0;
  int health_port_ = 0;
  int metrics_port_ = 0;
};

// Whether `address` (host:port, [v6]:port, unix:PATH) is reachable from this machine alone.
bool IsLoopback(const std::string& address);

}  // namespace kvmesh::rpc
