// DIR/mesh.json: which processes make up the mesh of a data directory, and the lock that says one
// is running.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {

struct ServiceEntry {
  std::string name;  // "router", "shard-0", "shard-0-r1", "meta", "tier-disk"
  pid_t pid = 0;
  std::string address;
  std::string metrics;  // host:port of /metrics
  std::string layers;   // "0:15"; of shards alone
};

struct MeshFile {
  std::string router;  // address
  std::vector<ServiceEntry> services;
};

std::string MeshPath(const std::string& data_dir);

Json ToJson(const MeshFile& mesh);

// Unavailable: cannot be written. Published by rename.
absl::Status WriteMesh(const std::string& data_dir, const MeshFile& mesh);
// NotFound: no mesh.json. InvalidArgument: not what WriteMesh wrote.
absl::StatusOr<MeshFile> ReadMesh(const std::string& data_dir);
void RemoveMesh(const std::string& data_dir);

// An exclusive lock on DIR. Children inherit the open file, so that the directory counts as in use
// for as long as any process of its mesh lives, also after the process that took the lock has gone.
class MeshLock {
 public:
  // FailedPrecondition: somebody holds it. Unavailable: DIR cannot be written.
  static absl::StatusOr<std::unique_ptr<MeshLock>> Take(const std::string& data_dir);
  ~MeshLock();
  MeshLock(const MeshLock&) = delete;
  MeshLock& operator=(const MeshLock&) = delete;

 private:
  explicit MeshLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace kvmesh::cli
