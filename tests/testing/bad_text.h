// Requests whose bytes are not what a client library would send.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace kvmesh::testing {

// How a call of `method` ("/package.Service/Method") ends whose only message is `bytes`.
absl::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& bytes);

// Calls every method of `service` (full name) once for each string field of its request, nested
// ones included, with text in that field that is no UTF-8. Expects INVALID_ARGUMENT with the
// field's path each time, and that there was a field to try.
void ExpectBadTextIsRefused(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& service);

}  // namespace kvmesh::testing
