#include "services/router/grpc/router_server.h"

#include <glog/logging.h>

#include <utility>

#include "common/base/status_macros.h"

namespace kvmesh::router {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(10);
constexpr char kServiceName[] = "kvmesh.v1.RouterService";

}  // namespace

// What speaks to the arbiter and the stores. Not moved: `ports` refers to the others.
struct RouterServer::Checkpoints {
  Checkpoints(const CheckpointOptions& options, const std::string& meta_address,
              const std::shared_ptr<rpc::TlsIdentity>& tls, const RouterModel& model,
              WorkPool& pool)
      : setup{options, *model.tokenizer},
        meta(meta_address, tls, options.layer_count),
        reader(tls, *model.tokenizer, pool),
        ports{setup, meta, reader} {}

  const CheckpointSetup setup;
  MetaClient meta;
  CheckpointReader reader;
  CheckpointPorts ports;
};

std::unique_ptr<RouterServer::Checkpoints> RouterServer::MakeCheckpoints(
    const RouterOptions& options) {
  if (options.meta_address.empty()) return nullptr;
  CheckpointOptions checkpoints = options.checkpoints;
  checkpoints.state_can_be_cut = model_.state_can_be_cut;
  checkpoints.layer_count = model_.identity.layer_count;
  return std::make_unique<Checkpoints>(checkpoints, options.meta_address, options.server.tls,
                                       model_, pool_);
}

RouterServer::RouterServer(const RouterOptions& options, RouterModel model, const Clock& clock)
    : model_(std::move(model)),
      callers_({.clients_file = options.clients_file, .tls = options.server.tls != nullptr},
               metrics_),
      discovery_(options.discovery, options.server.tls, clock),
      checkpoints_(MakeCheckpoints(options)),
      registry_(options.registry, discovery_, model_.identity, clock, router_metrics_,
                checkpoints_ == nullptr ? nullptr : &checkpoints_->ports),
      service_({.model = model_,
                .clock = clock,
                .callers = callers_,
                .shards = discovery_,
                .registry = registry_,
                .metrics = router_metrics_,
                .pool = pool_,
                .trace_sample_ratio = options.trace_sample_ratio,
                .generation_time_max = options.generation_time_max,
                .generations_max = options.registry.generations_max,
                .on_drain = [this] { BeginDrain(); }}) {}

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(const RouterOptions& options,
                                                                  RouterModel model,
                                                                  const Clock& clock) {
  std::unique_ptr<RouterServer> router(new RouterServer(options, std::move(model), clock));
  KVMESH_RETURN_IF_ERROR(router->callers_.Load());
  absl::StatusOr<std::unique_ptr<rpc::RpcServer>> server =
      rpc::RpcServer::Start(options.server, {{kServiceName, &router->service_}}, router->metrics_);
  if (!server.ok()) return server.status();
  router->server_ = *std::move(server);
  router->ticker_ = std::thread([raw = router.get()] { raw->TickLoop(); });
  return router;
}

RouterServer::~RouterServer() {
  if (server_ != nullptr) Drain(absl::ZeroDuration());
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (ticker_.joinable()) ticker_.join();
}

void RouterServer::TickLoop() {
  for (;;) {
    discovery_.Tick();
    if (discovery_.TakeChanged()) {
      UpdateReadiness();
      registry_.OnShardsChanged();
    }
    registry_.Tick();
    MutexLock lock(&mutex_);
    if (stopping_) return;
    wake_.WaitFor(&mutex_, kTick);
    if (stopping_) return;
  }
}

// Health says SERVING while a generation that came now would find a route.
void RouterServer::UpdateReadiness() {
  const std::vector<ShardFacts> facts = discovery_.Facts();
  const absl::StatusOr<RoutePlan> route = PlanRoute(facts, model_.identity, {});
  router_metrics_.shards_seen.Set(static_cast<double>(facts.size()));
  router_metrics_.route_ready.Set(route.ok() ? 1 : 0);
  if (route.ok()) {
    LOG(INFO) << "a route of " << route->hops.size() << " shards covers all layers";
  } else {
    LOG(WARNING) << "no route: " << route.status().message();
  }
  server_->SetServing(route.ok() && !registry_.counts().draining);
}

void RouterServer::BeginDrain() {
  registry_.Drain();
  server_->SetServing(false);
}

void RouterServer::Drain(absl::Duration grace) {
  BeginDrain();
  registry_.AwaitDrained(grace);
  server_->Shutdown(absl::Seconds(1));
}

}  // namespace kvmesh::router
