// Stores the slabs of a hop's saves and reads those of its restores, on threads of its own, so that
// neither compute nor a stream waits. Bulk bytes have connections of their own.
//
// Thread-safe. Every job ends with exactly one event, within its time limit; events come on this
// object's threads, or inside Save and Restore when a job cannot even be queued.
#pragma once

#include <grpcpp/channel.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rpc/call_group.h"
#include "common/rpc/channel.h"
#include "services/shard/core/checkpoint.h"
#include "services/shard/core/engine.h"
#include "services/shard/core/job.h"
#include "services/shard/core/save_slab.h"
#include "services/shard/grpc/checkpoint_queue.h"
#include "services/shard/grpc/meta_client.h"

namespace kvmesh::shard {

struct CheckpointIoOptions {
  SlabFacts facts;
  uint32_t model_layers = 0;
  std::string meta_address;               // empty: no fragments
  std::shared_ptr<rpc::TlsIdentity> tls;  // null: plaintext
  // Whether a store may be dialled, whoever names it.
  std::function<bool(const std::string&)> store_allowed;
  // Slabs that are built and sent at a time: each costs its size in memory beside the snapshot.
  uint32_t save_threads = 2;
  uint32_t fragment_threads = 2;  // apart, so that a store that hangs does not hold them up
  uint32_t restore_threads = 4;
  uint32_t waiting_max = 256;  // of each kind
};

class CheckpointIo {
 public:
  struct Events {
    std::function<void(SaveId)> save_started;
    std::function<void(SaveId, std::optional<SaveDrop>)> save_ended;
    // With the time it took, waiting for a thread included.
    std::function<void(StreamId, RestoreResult, absl::Duration)> restore_done;
  };

  // All references outlive it.
  CheckpointIo(const CheckpointIoOptions& options, const Clock& clock, const Engine& engine,
               const Vocabulary& vocabulary, Events events);
  ~CheckpointIo() { Stop(); }
  CheckpointIo(const CheckpointIo&) = delete;
  CheckpointIo& operator=(const CheckpointIo&) = delete;

  void Save(const std::shared_ptr<SaveJob>& job);
  void Restore(RestoreJob job);
  // Its restore_done tells of a failure, at once, if it is not under way already.
  void CancelRestore(StreamId stream);
  // Gives up what waits and what runs, whatever a store or the arbiter is doing. Idempotent.
  void Stop();

 private:
  // One restore, shared by the reads of its slabs.
  struct Restoring;

  std::optional<SaveDrop> RunSave(SaveJob& job, MonoTime deadline);
  absl::StatusOr<Reservation> Reserve(const SaveJob& job, const SlabDraft& draft,
                                      MonoTime deadline);
  absl::Status Put(const SaveJob& job, const Reservation& place,
                   const std::shared_ptr<const BuiltSlab>& slab, MonoTime deadline);
  void RunRead(Restoring& restoring, size_t read, bool run);
  std::optional<RestoreFailure> Read(Restoring& restoring, size_t read);
  // PermissionDenied: no address, or not one of this shard's stores.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(const std::string& address);

  const CheckpointIoOptions options_;
  const Clock& clock_;
  const Engine& engine_;
  const Vocabulary& vocabulary_;
  const Events events_;
  rpc::CallGroup saving_;                   // calls to stores and for reservations
  const std::unique_ptr<MetaClient> meta_;  // null: no arbiter is known
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  // Those under way.
  std::map<StreamId, std::shared_ptr<Restoring>> restoring_ ABSL_GUARDED_BY(mutex_);
  // One bulk connection a store.
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mutex_);
  // Last: their threads use what stands above.
  CheckpointQueue saves_;
  CheckpointQueue fragments_;
  CheckpointQueue restores_;
};

}  // namespace kvmesh::shard
