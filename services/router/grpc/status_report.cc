#include "services/router/grpc/status_report.h"

#include "common/base/version.h"

namespace kvmesh::router {
namespace {

void FillRange(const LayerRange& layers, v1::LayerRange* proto) {
  proto->set_begin(layers.begin);
  proto->set_end(layers.end);
}

void FillHop(const forward::HopRef& hop, v1::RouteHop* proto) {
  proto->set_address(hop.address);
  proto->set_instance_id(hop.instance.ToHex());
  FillRange(hop.layers, proto->mutable_layers());
}

void FillShard(const ShardView& view, const ModelIdentity& identity, v1::ShardStatus* proto) {
  proto->set_address(view.address);
  proto->set_connected(view.connected);
  proto->set_error(view.error);
  const ShardFacts& facts = view.facts;
  if (facts.instance.is_zero()) return;  // never heard of
  if (view.connected) proto->set_error(WhyUnusable(facts, identity));
  proto->set_instance_id(facts.instance.ToHex());
  FillRange(facts.layers, proto->mutable_layers());
  proto->set_draining(facts.draining);
  proto->set_supports_kv_cache(facts.supports_kv_cache);
  proto->set_live_sessions(facts.live_sessions);
  proto->set_sessions_max(facts.sessions_max);
  proto->set_bytes_used(facts.bytes_used);
  proto->set_bytes_max(facts.bytes_max);
  proto->set_quant(facts.quant);
  proto->set_numerics_id(facts.numerics_id);
}

absl::string_view StateName(const GenerationDriver::Info& info) {
  return info.waits_for_room ? PhaseName(Phase::kIdle) : PhaseName(info.phase);
}

}  // namespace

void ReportShards(const std::vector<ShardView>& views, absl::Span<const ShardFacts> facts,
                  const ModelIdentity& identity, v1::GetStatusResponse* response) {
  response->set_version(std::string(kVersion));
  response->set_layer_count(identity.layer_count);
  for (const ShardView& view : views) FillShard(view, identity, response->add_shards());
  for (const LayerRange& range : MissingLayers(facts, identity)) {
    FillRange(range, response->add_missing());
  }
  const absl::StatusOr<RoutePlan> route = PlanRoute(facts, identity, {});
  response->set_ready(route.ok());
  if (!route.ok()) {
    response->set_not_ready_reason(std::string(route.status().message()));
    return;
  }
  response->set_model_fp(route->cache_namespace.model_fp.ToHex());
  response->set_quant(route->cache_namespace.quant);
  response->set_numerics_id(route->numerics_id);
  response->set_stateless(route->stateless);
  for (const forward::HopRef& hop : route->hops) FillHop(hop, response->add_route());
}

void HideLoad(v1::GetStatusResponse* response) {
  for (v1::ShardStatus& shard : *response->mutable_shards()) {
    shard.clear_live_sessions();
    shard.clear_bytes_used();
  }
}

void ReportGeneration(const GenerationDriver::Info& info, v1::GenerationInfo* proto) {
  proto->set_generation_id(info.session.ToHex());
  proto->set_state(std::string(StateName(info)));
  proto->set_prompt_tokens(info.prompt_tokens);
  proto->set_completion_tokens(info.output_tokens);
  proto->set_epoch(static_cast<uint64_t>(info.epoch));
  proto->set_attempt(static_cast<uint64_t>(info.attempt));
  proto->mutable_age()->set_value(static_cast<uint64_t>(absl::ToInt64Milliseconds(info.age)));
  for (const forward::HopRef& hop : info.hops) FillHop(hop, proto->add_route());
}

}  // namespace kvmesh::router
