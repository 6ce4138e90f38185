// What `bench warm` reads off the services of its own mesh: how long restores and prefills took in
// the shards themselves, what was saved, and when nothing is being saved any more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "tools/kvmesh/interrupt.h"
#include "tools/kvmesh/local_mesh.h"

namespace kvmesh::cli {

// Sums since the shards began, of all restores and frames.
struct ShardSums {
  std::vector<double> restore_seconds;  // by shard: they restore side by side
  double prefill_seconds = 0;           // of all shards: a chunk runs in one after another
  double rows_run = 0;
  double continued_saves = 0;
};

// Not thread-safe.
class WarmProbe {
 public:
  // `mesh` must outlive it. NotFound: the mesh has no arbiter. Unavailable: a shard does not
  // answer.
  static absl::StatusOr<WarmProbe> Make(const LocalMesh& mesh);

  // Unavailable: a shard does not answer.
  absl::StatusOr<ShardSums> Sums() const;
  // Until no answer has saves to hand out, and the arbiter no write under way. DeadlineExceeded:
  // there still is one after 60 s. Cancelled: interrupted.
  absl::Status AwaitSaves(Interrupt& interrupt) const;
  // Bytes of the slabs that are stored, over the bytes of keys and values of their tokens.
  absl::StatusOr<double> SavedOverState() const;

  uint64_t state_bytes_per_token() const { return state_bytes_per_token_; }

 private:
  std::vector<std::string> shard_metrics_;  // addresses
  std::unique_ptr<v1::RouterService::Stub> router_;
  std::unique_ptr<v1::MetaService::Stub> meta_;
  uint64_t state_bytes_per_token_ = 0;  // of all layers
};

// What lies between two readings, in milliseconds.
double RestoreMs(const ShardSums& before, const ShardSums& after);
double PrefillMs(const ShardSums& before, const ShardSums& after);

}  // namespace kvmesh::cli
