#include "common/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/rpc/health.h"
#include "common/rpc/tls_identity.h"
#include "common/rpc/tracing.h"

namespace kvmesh::rpc {
namespace {

constexpr int kAheadBytesMax = 4 << 20;  // of one call
constexpr int kConcurrentStreamsMax = 4096;

void ApplyLimits(grpc::ServerBuilder& builder) {
  const int keepalive_ms = static_cast<int>(absl::ToInt64Milliseconds(limits::kKeepalive));
  builder.SetMaxReceiveMessageSize(limits::kMessageBytesMax);
  builder.SetMaxSendMessageSize(limits::kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Peers ping every keepalive interval; the default of 300 s would answer with GOAWAY.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             keepalive_ms / 4);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kConcurrentStreamsMax);
  // What a peer may send ahead of a slow reader is memory here; gRPC's own guess of the path's
  // capacity lets it grow to tens of megabytes.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kAheadBytesMax);
  // Two processes on one port would split the clients between them.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

// gRPC takes a port beyond 65535 modulo 65536, and would serve where nobody looks.
absl::Status CheckPort(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return absl::OkStatus();
  uint32_t port = 0;
  if (absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port) && port <= 65535) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cannot listen on ", address, ": a port is a number from 0 to 65535"));
}

absl::StatusOr<std::unique_ptr<grpc::Server>> Listen(const std::string& address,
                                                     std::shared_ptr<grpc::ServerCredentials> creds,
                                                     absl::Duration connection_age,
                                                     const std::vector<grpc::Service*>& services,
                                                     int* port) {
  KVMESH_RETURN_IF_ERROR(CheckPort(address));
  grpc::ServerBuilder builder;
  ApplyLimits(builder);
  if (connection_age < absl::InfiniteDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               static_cast<int>(absl::ToInt64Milliseconds(connection_age)));
  }
  builder.AddListeningPort(address, std::move(creds), port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> tracers;
  tracers.push_back(MakeCallTracer());
  builder.experimental().SetInterceptorCreators(std::move(tracers));
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || *port < 0 || (*port == 0 && !absl::StartsWith(address, "unix:"))) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", address, ": is it in use, or not an address of this machine?"));
  }
  return server;
}

}  // namespace

RpcServer::RpcServer() : health_(std::make_unique<HealthService>()) {}

RpcServer::~RpcServer() {
  Shutdown(absl::ZeroDuration());
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const ServerOptions& options, const std::vector<NamedService>& services,
    metrics::Metrics& metrics) {
  grpc::EnableDefaultHealthCheckService(false);
  // Process-wide and effective from the next builder on; a second call would register the plugin
  // twice.
  static const bool reflection_on = [] {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  static_cast<void>(reflection_on);

  std::unique_ptr<RpcServer> result(new RpcServer());
  std::vector<grpc::Service*> all = {result->health_.get()};
  std::vector<std::string> names;
  for (const NamedService& named : services) {
    all.push_back(named.service);
    names.push_back(named.name);
  }
  result->health_->SetNames(std::move(names));
  if (options.tls != nullptr) options.tls->CountIn(metrics);
  auto server =
      Listen(options.listen,
             options.tls == nullptr ? grpc::InsecureServerCredentials() : options.tls->ForServer(),
             options.connection_age, all, &result->port_);
  if (!server.ok()) return server.status();
  result->server_ = std::move(*server);
  if (!options.health_listen.empty()) {
    auto health = Listen(options.health_listen, grpc::InsecureServerCredentials(),
                         absl::InfiniteDuration(), {result->health_.get()}, &result->health_port_);
    if (!health.ok()) return health.status();
    result->health_server_ = std::move(*health);
  }
  if (!options.metrics_listen.empty()) {
    auto served = metrics::MetricsServer::Start(options.metrics_listen, metrics);
    if (!served.ok()) return served.status();
    result->metrics_server_ = std::move(*served);
    result->metrics_port_ = result->metrics_server_->port();
  }
  return result;
}

void RpcServer::SetServing(bool serving) {
  health_->SetServing(serving);
}

void RpcServer::SetAlive(bool alive) {
  health_->SetAlive(alive);
}

void RpcServer::Shutdown(absl::Duration grace) {
  if (server_ == nullptr) return;
  health_->Stop();
  const auto deadline = absl::ToChronoTime(absl::Now() + grace);
  server_->Shutdown(deadline);
  if (health_server_ != nullptr) health_server_->Shutdown(deadline);
  server_.reset();
  health_server_.reset();
}

bool IsLoopback(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

}  // namespace kvmesh::rpc
