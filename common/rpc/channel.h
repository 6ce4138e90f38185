// Client channels with the project's limits and keepalive.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "common/rpc/role.h"

namespace kvmesh::rpc {

class TlsIdentity;

// A channel to one address (host:port, or unix:PATH). Every call makes a connection of
// its own: no sub-channel is shared, so that a broken or busy one is nobody else's. Connecting
// happens at the first use. Plaintext, or where there is an identity TLS, to a peer that must prove
// to be a `server`.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<TlsIdentity>& tls, Role server);

// The arguments and credentials of these channels, for those who add to them.
grpc::ChannelArguments MakeChannelArguments(const std::shared_ptr<TlsIdentity>& tls, Role server);
std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const std::shared_ptr<TlsIdentity>& tls,
                                                         Role server);

}  // namespace kvmesh::rpc
