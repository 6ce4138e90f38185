// Client channels with the project's limits and keepalive.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

namespace kvmesh::rpc {

// A plaintext channel to one address (host:port, or unix:PATH). Every call makes a connection of
// its own: no sub-channel is shared, so that a broken or busy one is nobody else's. Connecting
// happens at the first use.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

}  // namespace kvmesh::rpc
