// The plain pump, both ends.
#pragma once

#include <cstdint>
#include <string>

namespace kvmesh::bench {

// Serves until the process is killed; prints its address to the file.
void ServePump(const std::string& ready_file);

// Moves so many bytes to or from the server in chunks of 1 MiB; seconds it took.
double PumpTo(const std::string& address, const std::string& chunk, uint64_t bytes);
double PumpFrom(const std::string& address, uint64_t bytes);

}  // namespace kvmesh::bench
