#include "common/rpc/channel.h"

#include <grpcpp/create_channel.h>

#include "common/base/limits.h"
#include "common/rpc/tls_identity.h"

namespace kvmesh::rpc {

grpc::ChannelArguments MakeChannelArguments(const std::shared_ptr<TlsIdentity>& tls, Role server) {
  grpc::ChannelArguments args;
  // The name asked for in the handshake; nobody checks it against the certificate.
  if (tls != nullptr) args.SetSslTargetNameOverride(RoleHost(server));
  args.SetMaxReceiveMessageSize(limits::kMessageBytesMax);
  args.SetMaxSendMessageSize(limits::kMessageBytesMax);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
              static_cast<int>(absl::ToInt64Milliseconds(limits::kKeepalive)));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A restarted peer is found again within a second instead of gRPC's growing back-off of up to two
  // minutes.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // In spite of its name, how long one attempt to connect may take: a busy peer is not a dead one.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return args;
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const std::shared_ptr<TlsIdentity>& tls,
                                                         Role server) {
  return tls == nullptr ? grpc::InsecureChannelCredentials() : tls->ForChannel(server);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  return MakeChannel(address, nullptr, Role::kAnonymous);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<TlsIdentity>& tls, Role server) {
  return grpc::CreateCustomChannel(address, CredentialsFor(tls, server),
                                   MakeChannelArguments(tls, server));
}

}  // namespace kvmesh::rpc
