// A whole kvmesh-meta: index, arbiter's thread, service, server.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "services/meta/grpc/arbiter_loop.h"
#include "services/meta/grpc/meta_metrics.h"
#include "services/meta/grpc/meta_service.h"

namespace kvmesh::meta {

struct MetaServerOptions {
  rpc::ServerOptions server;
  LoopOptions loop;
};

// Thread-safe. Serves from Start until Shutdown or its end. It holds nothing when it starts; the
// stores that attach tell it what there is.
class MetaServer {
 public:
  // `clock` must outlive the server. Unavailable: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetaServer>> Start(const MetaServerOptions& options,
                                                           const Clock& clock);
  ~MetaServer();

  const rpc::RpcServer& server() const { return *server_; }
  int port() const { return server_->port(); }
  const metrics::Metrics& metrics() const { return metrics_; }
  const ReadIndex& index() const { return index_; }

  // Refuses new calls, ends those that wait and the streams of the stores; gives what has been
  // answered `grace` to get out, or a second if that is less.
  void Shutdown(absl::Duration grace);

 private:
  MetaServer() : metrics_("meta"), meta_metrics_(metrics_) {}

  metrics::Metrics metrics_;
  MetaMetrics meta_metrics_;
  ReadIndex index_;
  std::unique_ptr<ArbiterLoop> loop_;
  std::unique_ptr<MetaService> service_;
  std::unique_ptr<rpc::RpcServer> server_;
};

}  // namespace kvmesh::meta
