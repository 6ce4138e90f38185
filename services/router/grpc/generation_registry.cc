#include "services/router/grpc/generation_registry.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"

namespace kvmesh::router {
namespace {

constexpr absl::Duration kCloseWait = absl::Seconds(1);  // for shards to end closed streams
constexpr absl::Duration kCancelWait = absl::Seconds(10);

bool InScope(const GenerationDriver& driver, const GenerationRegistry::Scope& scope) {
  return !scope.tenant.has_value() || driver.tenant() == *scope.tenant;
}

}  // namespace

GenerationRegistry::GenerationRegistry(const RegistryOptions& options, Discovery& shards,
                                       const ModelIdentity& identity, const Clock& clock,
                                       RouterMetrics& metrics, const CheckpointPorts* checkpoints)
    : clock_(clock),
      metrics_(metrics),
      context_{.shards = shards,
               .identity = identity,
               .clock = clock,
               .metrics = metrics,
               .limits = options.limits,
               .checkpoints = checkpoints,
               .on_done = [this](const SessionId& session,
                                 uint64_t tokens_run) { OnDone(session, tokens_run); },
               .live = live_},
      admission_(options.generations_max, options.queue_max) {}

GenerationRegistry::~GenerationRegistry() {
  Drain();
  AwaitDrained(absl::ZeroDuration());
  std::vector<std::shared_ptr<GenerationDriver>> drivers = Drivers();
  {
    MutexLock lock(&mutex_);
    drivers_.clear();
  }
  const absl::Time until = absl::Now() + kCloseWait;
  for (auto& driver : drivers) {
    while (!driver->finished() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(5));
    driver->Abandon();
  }
  drivers.clear();
  while (!live_.WaitForNone(kCancelWait)) LOG(WARNING) << "calls to shards have still not ended";
}

absl::StatusOr<std::shared_ptr<GenerationDriver>> GenerationRegistry::Enter(
    GenerationSpec spec, std::shared_ptr<GenerationClient> client, Retokenizer retokenize) {
  const SessionId session = spec.session;
  const TenantPtr tenant = spec.tenant;
  TenantLedger::Need need{.tokens = spec.prompt.size() + spec.max_tokens};
  if (tenant->limits.kv_bytes > 0) need.kv_bytes = KvBytes(need.tokens);
  std::shared_ptr<GenerationDriver> driver;
  bool start = false;
  {
    MutexLock lock(&mutex_);
    if (draining_) return absl::UnavailableError("this router is draining; try another one");
    if (absl::Status entered = ledger_.Enter(tenant, session, need, clock_.Now()); !entered.ok()) {
      metrics_.CountTenantRefusal(tenant->name,
                                  ErrorInfoOf(entered).value_or(ErrorInfo{}).metadata["limit"]);
      return entered;
    }
    absl::StatusOr<AdmissionQueue::Place> place = admission_.Enter(session);
    if (!place.ok()) {
      ledger_.Leave(session, 0, clock_.Now());
      return place.status();
    }
    start = *place == AdmissionQueue::Place::kRunning;
    driver = std::make_shared<GenerationDriver>(context_, std::move(spec), std::move(client),
                                                std::move(retokenize));
    drivers_[session] = driver;
  }
  if (start) driver->Start();
  return driver;
}

uint64_t GenerationRegistry::KvBytes(uint64_t tokens) const {
  const absl::StatusOr<RoutePlan> route = PlanRoute(context_.shards.Facts(), context_.identity, {});
  if (!route.ok()) return 0;
  uint64_t bytes = 0;
  for (const HopStateBytes& hop : route->state_bytes) bytes += hop.per_token * tokens + hop.fixed;
  return bytes;
}

void GenerationRegistry::OnDone(const SessionId& session, uint64_t tokens_run) {
  std::shared_ptr<GenerationDriver> next;
  {
    MutexLock lock(&mutex_);
    ledger_.Leave(session, tokens_run, clock_.Now());
    const std::optional<SessionId> admitted = admission_.Leave(session);
    if (admitted.has_value()) {
      const auto it = drivers_.find(*admitted);
      if (it != drivers_.end()) next = it->second;
    }
    ended_.NotifyAll();
  }
  if (next != nullptr) next->Start();
}

absl::Status GenerationRegistry::Cancel(const SessionId& session, const Scope& scope) {
  std::shared_ptr<GenerationDriver> driver;
  {
    MutexLock lock(&mutex_);
    const auto it = drivers_.find(session);
    if (it != drivers_.end() && InScope(*it->second, scope)) driver = it->second;
  }
  if (driver == nullptr) {
    return absl::NotFoundError(absl::StrCat("no generation ", session.ToHex(), " runs here"));
  }
  driver->Cancel(absl::CancelledError("cancelled by CancelGeneration"));
  return absl::OkStatus();
}

std::vector<GenerationDriver::Info> GenerationRegistry::List(const Scope& scope,
                                                             const std::optional<SessionId>& after,
                                                             size_t count) const {
  std::vector<GenerationDriver::Info> infos;
  for (const auto& driver : Drivers()) {
    if (infos.size() >= count) break;
    if (after.has_value() && driver->session() <= *after) continue;
    if (!InScope(*driver, scope)) continue;
    GenerationDriver::Info info = driver->info();
    // One whose client has its answer only cleans up.
    if (info.phase == Phase::kClosing || info.phase == Phase::kFinished) continue;
    infos.push_back(std::move(info));
  }
  return infos;
}

std::vector<std::shared_ptr<GenerationDriver>> GenerationRegistry::Drivers() const {
  MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<GenerationDriver>> drivers;
  drivers.reserve(drivers_.size());
  for (const auto& [session, driver] : drivers_) drivers.push_back(driver);
  return drivers;
}

GenerationRegistry::Counts GenerationRegistry::counts(const Scope& scope) const {
  Counts counts;
  if (scope.tenant.has_value()) {
    for (const auto& driver : Drivers()) {
      if (!InScope(*driver, scope)) continue;
      const GenerationDriver::Info info = driver->info();
      if (driver->closing()) ++counts.closing;
      if (info.phase == Phase::kClosing || info.phase == Phase::kFinished) continue;
      ++(info.phase == Phase::kIdle || info.waits_for_room ? counts.queued : counts.running);
    }
    MutexLock lock(&mutex_);
    counts.draining = draining_;
    return counts;
  }
  {
    MutexLock lock(&mutex_);
    counts.queued = admission_.queued();
    counts.running = admission_.running();
    counts.draining = draining_;
  }
  // After those: one that closes meanwhile is counted at least once.
  for (const auto& driver : Drivers()) {
    if (driver->waits_for_room()) ++counts.queued;
    if (driver->closing()) ++counts.closing;
  }
  return counts;
}

void GenerationRegistry::Drain() {
  MutexLock lock(&mutex_);
  draining_ = true;
}

void GenerationRegistry::AwaitDrained(absl::Duration grace) {
  const absl::Time until = absl::Now() + grace;
  {
    MutexLock lock(&mutex_);
    while (admission_.running() + admission_.queued() > 0 && absl::Now() < until) {
      ended_.WaitFor(&mutex_, until - absl::Now());
    }
  }
  for (const auto& driver : Drivers()) {
    driver->Cancel(absl::UnavailableError("this router is shutting down"));
  }
}

void GenerationRegistry::Tick() {
  const MonoTime now = clock_.Now();
  for (const auto& driver : Drivers()) {
    if (driver->next_timer() <= now) driver->Tick();
    if (!driver->finished()) continue;
    MutexLock lock(&mutex_);
    drivers_.erase(driver->session());
  }
  const Counts now_counts = counts();
  metrics_.running.Set(static_cast<double>(now_counts.running));
  metrics_.closing.Set(static_cast<double>(now_counts.closing));
  metrics_.queue_depth.Set(static_cast<double>(now_counts.queued));
}

void GenerationRegistry::OnShardsChanged() {
  for (const auto& driver : Drivers()) driver->OnShardsChanged();
}

}  // namespace kvmesh::router
