// The plain pump, both ends.
#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <string>

namespace kvmesh::bench {

// Serves until the process is killed; prints its address to the file.
void ServePump(const std::string& ready_file);

// Moves so many bytes to or from the server in chunks of 1 MiB.
void PumpTo(const std::shared_ptr<grpc::Channel>& channel, const std::string& chunk,
            uint64_t bytes);
void PumpFrom(const std::shared_ptr<grpc::Channel>& channel, uint64_t bytes);

}  // namespace kvmesh::bench
