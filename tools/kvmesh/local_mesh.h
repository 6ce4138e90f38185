// A whole mesh on this machine: a router, per stage one or more shard processes and, with
// checkpoints, the arbiter and storage tiers. What `up` starts and `bench hop` compares.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/kvmesh/child.h"
#include "tools/kvmesh/interrupt.h"
#include "tools/kvmesh/mesh_file.h"

namespace kvmesh::cli {

struct MeshOptions {
  std::string model;     // a directory or a .gguf file
  std::string data_dir;  // logs, mesh.json, the slabs of the disk tier
  int shards = 2;
  int replicas = 1;                       // of each stage
  int threads = 0;                        // of each shard; 0: the shard's own choice
  std::vector<std::string> tiers;         // none: no checkpoints
  std::vector<std::string> tier_policy;   // REASON=TIER[,TIER...], as of kvmesh-meta
  std::vector<std::string> router_flags;  // further ones, as kvmesh-router takes them
  std::vector<std::string> shard_flags;   // likewise, of every shard
  std::string certificates;               // as of tools/dev-certs; empty: plaintext
  std::string clients_file;               // of the router; empty: none
  bool detached = false;
  absl::Duration start_timeout = absl::Minutes(5);
};

// Not thread-safe. Stops its children when it goes, unless they are detached.
class LocalMesh {
 public:
  // Starts all processes, waits until the mesh can answer, and writes DIR/mesh.json. On any failure
  // nothing is left running. FailedPrecondition: a mesh runs in that directory. NotFound: no such
  // model. InvalidArgument: more stages than layers. As of Model::Open for a model that is none.
  // Unavailable: a process ended (its reason is shown) or the mesh did not answer in time.
  // Cancelled: interrupted.
  static absl::StatusOr<std::unique_ptr<LocalMesh>> Start(const MeshOptions& options,
                                                          Interrupt& interrupt);
  ~LocalMesh();

  const MeshFile& file() const { return file_; }
  const std::string& router() const { return file_.router; }
  std::vector<Child>& children() { return children_; }

  // Drains and ends every process; removes mesh.json. False: one had to be killed.
  bool Stop(absl::Duration grace);

 private:
  explicit LocalMesh(const MeshOptions& options) : options_(options) {}

  absl::Status StartProcesses(Interrupt& interrupt);
  // Arbiter and tiers; empty: none are wanted. Else the arbiter's address.
  absl::StatusOr<std::string> StartStores();
  // Of the tiers, separated by commas.
  std::string StoreAddresses() const;
  absl::Status StartShards(const std::string& meta_address, std::string* all_addresses);
  absl::Status StartProcess(const std::string& program, ServiceEntry entry,
                            std::vector<std::string> arguments);
  // Until `why_not` gives nothing. Unavailable: a process ended, or the time is up; Cancelled:
  // interrupted.
  absl::Status WaitFor(Interrupt& interrupt, const std::function<std::string()>& why_not);
  // Until every service started so far serves.
  absl::Status WaitForReadyFiles(Interrupt& interrupt);
  absl::Status ReadReadyFiles();
  // Until the arbiter knows what every tier holds.
  absl::Status WaitForInventories(const std::string& meta_address, Interrupt& interrupt);
  absl::StatusOr<std::string> NextAddress();

  MeshOptions options_;
  std::unique_ptr<MeshLock> lock_;
  std::vector<Child> children_;
  MeshFile file_;
  size_t stores_ = 0;       // the first so many children are arbiter and tiers,
  size_t shards_ = 0;       // the next so many shards, then the router
  std::vector<int> ports_;  // not used yet
  absl::Time start_deadline_;
  bool stopped_ = false;
};

// The file name of the program that serves as `name` in a mesh.
std::string ProgramOf(const std::string& service_name);

}  // namespace kvmesh::cli
