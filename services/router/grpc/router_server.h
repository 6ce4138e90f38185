// A whole router in one object, as main.cc and tests run it. Order of calls: Start, then Drain,
// then destruction. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "services/router/grpc/callers.h"
#include "services/router/grpc/discovery.h"
#include "services/router/grpc/generation_registry.h"
#include "services/router/grpc/router_metrics.h"
#include "services/router/grpc/router_model.h"
#include "services/router/grpc/router_service.h"
#include "services/router/grpc/work_pool.h"

namespace kvmesh::router {

struct RouterOptions {
  rpc::ServerOptions server;
  DiscoveryOptions discovery;
  RegistryOptions registry;
  std::string clients_file;  // empty: no tenants
  double trace_sample_ratio = 0;
  std::string meta_address;       // of the arbiter; empty: no checkpoints
  CheckpointOptions checkpoints;  // but for what the model says
  absl::Duration generation_time_max = absl::Hours(1);
};

class RouterServer {
 public:
  // `clock` must outlive it. Unavailable: an address cannot be bound. InvalidArgument, NotFound:
  // the file of clients.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(const RouterOptions& options,
                                                             RouterModel model, const Clock& clock);
  ~RouterServer();

  // Refuses new generations, waits at most `grace` for the running ones, cancels the rest and stops
  // serving. Idempotent.
  void Drain(absl::Duration grace);

  int port() const { return server_->port(); }
  const rpc::RpcServer& server() const { return *server_; }
  const metrics::Metrics& metrics() const { return metrics_; }
  Discovery& discovery() { return discovery_; }

 private:
  struct Checkpoints;

  RouterServer(const RouterOptions& options, RouterModel model, const Clock& clock);
  std::unique_ptr<Checkpoints> MakeCheckpoints(const RouterOptions& options);
  void TickLoop();
  void UpdateReadiness();
  void BeginDrain();

  const RouterModel model_;
  metrics::Metrics metrics_{"router"};
  RouterMetrics router_metrics_{metrics_};
  Callers callers_;
  Discovery discovery_;
  WorkPool pool_{WorkPoolOptions{}};
  const std::unique_ptr<Checkpoints> checkpoints_;  // null: no arbiter
  GenerationRegistry registry_;
  RouterService service_;
  std::unique_ptr<rpc::RpcServer> server_;

  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread ticker_;
};

}  // namespace kvmesh::router
