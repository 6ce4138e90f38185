// The plain pump, both ends: what gRPC moves when nobody does anything with the bytes. What moves
// slabs is held against it.
#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace kvmesh::bench {

// Serves on a free port of the loopback until the process is killed; writes {"address": …} to the
// file. Returns only when it cannot: Unavailable.
absl::Status ServePump(const std::string& ready_file);

// Moves so many bytes to or from the server in chunks of 1 MiB. DataLoss: some are missing; the
// statuses of the call.
absl::Status PumpTo(const std::shared_ptr<grpc::Channel>& channel, const std::string& chunk,
                    uint64_t bytes);
absl::Status PumpFrom(const std::shared_ptr<grpc::Channel>& channel, uint64_t bytes);

}  // namespace kvmesh::bench
