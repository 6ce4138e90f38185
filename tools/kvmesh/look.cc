// `status` and `sessions`: what a mesh is doing.
#include <chrono>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/rpc/flags.h"
#include "common/rpc/status_bridge.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "tools/kvmesh/command.h"
#include "tools/kvmesh/dial.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {
namespace {

constexpr std::chrono::seconds kCallTimeout{10};
constexpr int kPagesMax = 10000;  // of sessions: bounds the loop over what a shard answers

Json LayersJson(const v1::LayerRange& layers) {
  return absl::StrCat(layers.begin(), ":", layers.end());
}

absl::Status GetStatus(const std::string& router, v1::GetStatusResponse* response) {
  auto stub = v1::RouterService::NewStub(Dial(router, rpc::Role::kRouter));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  return rpc::FromGrpc(stub->GetStatus(&context, {}, response));
}

Json ToJson(const v1::ShardStatus& shard) {
  return {{"address", shard.address()},
          {"instance_id", shard.instance_id()},
          {"layers", LayersJson(shard.layers())},
          {"connected", shard.connected()},
          {"draining", shard.draining()},
          {"supports_kv_cache", shard.supports_kv_cache()},
          {"live_sessions", shard.live_sessions()},
          {"sessions_max", shard.sessions_max()},
          {"bytes_used", shard.bytes_used()},
          {"bytes_max", shard.bytes_max()},
          {"quant", shard.quant()},
          {"numerics_id", shard.numerics_id()},
          {"error", shard.error()}};
}

Json ToJson(const v1::GetStatusResponse& status) {
  Json route = Json::array();
  for (const v1::RouteHop& hop : status.route()) {
    route.push_back({{"address", hop.address()},
                     {"instance_id", hop.instance_id()},
                     {"layers", LayersJson(hop.layers())}});
  }
  Json missing = Json::array();
  for (const v1::LayerRange& layers : status.missing()) missing.push_back(LayersJson(layers));
  Json shards = Json::array();
  for (const v1::ShardStatus& shard : status.shards()) shards.push_back(ToJson(shard));
  return {{"version", status.version()},
          {"ready", status.ready()},
          {"not_ready_reason", status.not_ready_reason()},
          {"draining", status.draining()},
          {"model_fp", status.model_fp()},
          {"quant", status.quant()},
          {"numerics_id", status.numerics_id()},
          {"layer_count", status.layer_count()},
          {"context_length", status.context_length()},
          {"stateless", status.stateless()},
          {"route", route},
          {"missing", missing},
          {"shards", shards},
          {"generations",
           {{"running", status.generations_running()},
            {"queued", status.generations_queued()},
            {"closing", status.generations_closing()},
            {"max", status.generations_max()}}}};
}

void PrintStatus(const v1::GetStatusResponse& status) {
  std::printf(
      "%s, %d layers, context %d, %s%s\n",
      status.ready() ? "ready" : absl::StrCat("not ready: ", status.not_ready_reason()).c_str(),
      status.layer_count(), status.context_length(), status.quant().c_str(),
      status.draining() ? ", draining" : "");
  if (!status.model_fp().empty()) std::printf("model %s\n", status.model_fp().c_str());
  std::printf("generations: %d running, %d queued, at most %d\n\n", status.generations_running(),
              status.generations_queued(), status.generations_max());
  std::printf("%-22s %-8s %-9s %-10s %s\n", "SHARD", "LAYERS", "SESSIONS", "STATE", "KV");
  for (const v1::ShardStatus& shard : status.shards()) {
    const std::string state = !shard.error().empty() ? "unused"
                              : !shard.connected()   ? "away"
                              : shard.draining()     ? "draining"
                                                     : "serving";
    std::printf("%-22s %-8s %-9s %-10s %s of %s\n", shard.address().c_str(),
                absl::StrCat(shard.layers().begin(), ":", shard.layers().end()).c_str(),
                absl::StrCat(shard.live_sessions(), "/", shard.sessions_max()).c_str(),
                state.c_str(), HumanBytes(static_cast<double>(shard.bytes_used())).c_str(),
                HumanBytes(static_cast<double>(shard.bytes_max())).c_str());
    if (!shard.error().empty()) std::printf("  %s\n", shard.error().c_str());
  }
}

int Status(Context& context, const std::string& router) {
  v1::GetStatusResponse status;
  if (const absl::Status got = GetStatus(router, &status); !got.ok()) {
    return Report(got, context.json, context.interrupt->requested());
  }
  if (context.json) {
    PrintJson(ToJson(status));
  } else {
    PrintStatus(status);
  }
  return kDone;
}

std::string StateName(v1::SessionState state) {
  switch (state) {
    case v1::SESSION_STATE_LIVE:
      return "live";
    case v1::SESSION_STATE_IDLE:
      return "idle";
    case v1::SESSION_STATE_ORPHANED:
      return "orphaned";
    default:
      return "unknown";
  }
}

// All sessions of one shard, page by page, appended to `sessions`.
absl::Status ListShard(const std::string& address, Json* sessions) {
  auto stub = v1::ShardService::NewStub(Dial(address, rpc::Role::kShard));
  v1::ListSessionsRequest request;
  for (int page = 0; page < kPagesMax; ++page) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    v1::ListSessionsResponse response;
    const grpc::Status status = stub->ListSessions(&context, request, &response);
    if (!status.ok()) return rpc::FromGrpc(status);
    for (const v1::SessionInfo& session : response.sessions()) {
      sessions->push_back({{"shard", address},
                           {"session_id", session.session_id()},
                           {"state", StateName(session.state())},
                           {"epoch", session.epoch()},
                           {"attempt", session.attempt()},
                           {"held", session.held()},
                           {"last_step", session.last_step()},
                           {"bytes", session.bytes()},
                           {"bytes_reserved", session.bytes_reserved()},
                           {"idle_ms", session.idle().value()},
                           {"tenant", session.tenant()}});
    }
    request.set_page_token(response.next_page_token());
    if (request.page_token().empty()) return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(address, " lists more than ", kPagesMax, " pages"));
}

int Sessions(Context& context, const std::string& router, std::vector<std::string> shards) {
  if (!router.empty()) {
    v1::GetStatusResponse status;
    if (const absl::Status got = GetStatus(router, &status); !got.ok()) {
      return Report(got, context.json, context.interrupt->requested());
    }
    for (const v1::ShardStatus& shard : status.shards()) shards.push_back(shard.address());
  }
  Json sessions = Json::array();
  Json errors = Json::array();
  absl::Status first_error;
  for (const std::string& shard : shards) {
    const absl::Status listed = ListShard(shard, &sessions);
    if (listed.ok()) continue;
    first_error.Update(listed);
    errors.push_back({{"shard", shard}, {"message", std::string(listed.message())}});
  }
  if (context.json) {
    PrintJson({{"sessions", sessions}, {"errors", errors}});
  } else {
    std::printf("%-22s %-32s %-9s %6s %7s %10s %8s\n", "SHARD", "SESSION", "STATE", "EPOCH",
                "TOKENS", "BYTES", "IDLE");
    for (const Json& s : sessions) {
      std::printf("%-22s %-32s %-9s %6lu %7lu %10s %6.1f s\n",
                  s["shard"].get<std::string>().c_str(), s["session_id"].get<std::string>().c_str(),
                  s["state"].get<std::string>().c_str(), s["epoch"].get<uint64_t>(),
                  s["held"].get<uint64_t>(), HumanBytes(s["bytes"].get<double>()).c_str(),
                  s["idle_ms"].get<double>() / 1000);
    }
    for (const Json& e : errors) {
      std::fprintf(stderr, "%s: %s\n", e["shard"].get<std::string>().c_str(),
                   e["message"].get<std::string>().c_str());
    }
  }
  return ExitCodeOf(first_error, context.interrupt->requested());
}

}  // namespace

void AddStatus(CLI::App& app, Action* chosen) {
  auto router = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("status", "Route, shards and generations of a mesh");
  command->add_option("--router", *router, "Address of a router")
      ->required()
      ->check(rpc::Address());
  command->callback([=] { *chosen = [=](Context& context) { return Status(context, *router); }; });
}

void AddSessions(CLI::App& app, Action* chosen) {
  auto router = std::make_shared<std::string>();
  auto shards = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand("sessions", "Sessions that the shards hold");
  CLI::Option_group* where = command->add_option_group("where", "Whose sessions");
  where->add_option("--router", *router, "Of all shards that this router knows")
      ->check(rpc::Address());
  where->add_option("--shard", *shards, "Of this shard; may be repeated")->check(rpc::Address());
  where->require_option(1);
  command->callback(
      [=] { *chosen = [=](Context& context) { return Sessions(context, *router, *shards); }; });
}

}  // namespace kvmesh::cli
