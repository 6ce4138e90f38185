// The generations of one router: admission, timers, listing, draining. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "services/router/core/admission.h"
#include "services/router/core/tenant_ledger.h"
#include "services/router/grpc/generation_driver.h"

namespace kvmesh::router {

struct RegistryOptions {
  uint32_t generations_max = 64;
  uint32_t queue_max = 256;
  GenerationLimits limits;
};

class GenerationRegistry {
 public:
  // All must outlive it. `checkpoints`: null without an arbiter.
  GenerationRegistry(const RegistryOptions& options, Discovery& shards,
                     const ModelIdentity& identity, const Clock& clock, RouterMetrics& metrics,
                     const CheckpointPorts* checkpoints);
  // Cancels what still runs and waits for the calls in flight.
  ~GenerationRegistry();

  // Starts a generation, or queues it. The driver is the handle for cancelling and poking.
  // ResourceExhausted QUEUE_FULL, TENANT_LIMIT; Unavailable: draining.
  absl::StatusOr<std::shared_ptr<GenerationDriver>> Enter(GenerationSpec spec,
                                                          std::shared_ptr<GenerationClient> client,
                                                          Retokenizer retokenize);

  // Whose generations a caller sees: those of one tenant, or everybody's.
  struct Scope {
    std::optional<std::string> tenant;  // none: everybody's
  };
  // NotFound, also where it runs for somebody else.
  absl::Status Cancel(const SessionId& session, const Scope& scope);
  // In the order of their ids, those after `after`.
  std::vector<GenerationDriver::Info> List(const Scope& scope,
                                           const std::optional<SessionId>& after,
                                           size_t count) const;
  struct Counts {
    size_t running = 0;
    size_t queued = 0;
    size_t closing = 0;  // the client has its answer; saves go out and the streams end
    bool draining = false;
  };
  Counts counts(const Scope& scope = {}) const;

  // Refuses new generations from now on.
  void Drain();
  // Waits for the running ones; then cancels the rest.
  void AwaitDrained(absl::Duration grace);

  void Tick();
  void OnShardsChanged();

 private:
  void OnDone(const SessionId& session, uint64_t tokens_run);
  // Session state that a generation may come to hold, over all hops of a route; 0: no route yet.
  uint64_t KvBytes(uint64_t tokens) const;
  std::vector<std::shared_ptr<GenerationDriver>> Drivers() const;

  const Clock& clock_;
  RouterMetrics& metrics_;
  LiveCount live_;
  DriverContext context_;

  mutable Mutex mutex_;
  CondVar ended_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  AdmissionQueue admission_ ABSL_GUARDED_BY(mutex_);
  TenantLedger ledger_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionId, std::shared_ptr<GenerationDriver>> drivers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::router
