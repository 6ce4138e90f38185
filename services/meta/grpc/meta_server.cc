#include "services/meta/grpc/meta_server.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace kvmesh::meta {
namespace {

// Once the arbiter drains every call has its answer, which is only still to be sent. gRPC would
// then wait for each idle connection until its client has answered a ping, which clients that are
// not calling anything do seconds later.
constexpr absl::Duration kAnswersOut = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<MetaServer>> MetaServer::Start(const MetaServerOptions& options,
                                                              const Clock& clock) {
  std::unique_ptr<MetaServer> meta(new MetaServer());
  meta->loop_ =
      std::make_unique<ArbiterLoop>(options.loop, clock, meta->meta_metrics_, meta->index_);
  const ArbiterLimits& limits = options.loop.arbiter.limits;
  meta->service_ =
      std::make_unique<MetaService>(*meta->loop_, meta->index_, meta->meta_metrics_, clock,
                                    MetaService::Limits{.lease_ttl = limits.lease_ttl,
                                                        .reservation_ttl = limits.reservation_ttl});
  KVMESH_ASSIGN_OR_RETURN(
      meta->server_,
      rpc::RpcServer::Start(options.server, {{"kvmesh.v1.MetaService", meta->service_.get()}},
                            meta->metrics_));
  meta->server_->SetServing(true);
  return meta;
}

MetaServer::~MetaServer() {
  Shutdown(absl::ZeroDuration());
}

void MetaServer::Shutdown(absl::Duration grace) {
  if (server_ == nullptr || loop_ == nullptr) return;
  server_->SetServing(false);
  loop_->Drain();
  server_->Shutdown(std::min(grace, kAnswersOut));
  // All calls have ended.
  loop_.reset();
}

}  // namespace kvmesh::meta
