// A plain gRPC service whose messages are as large as those of lookups.
#pragma once

#include <string>

namespace kvmesh::bench {

// Serves until the process is killed; writes its address to the file.
void ServeEcho(const std::string& ready_file);

}  // namespace kvmesh::bench
