#include "services/router/grpc/generation_registry.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh::router {
namespace {

constexpr absl::Duration kCloseWait = absl::Seconds(1);  // for shards to end closed streams
constexpr absl::Duration kCancelWait = absl::Seconds(10);

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
               .on_done = [this](const SessionId& session) { OnDone(session); },
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
  std::shared_ptr<GenerationDriver> driver;
  bool start = false;
  {
    MutexLock lock(&mutex_);
    if (draining_) return absl::UnavailableError("this router is draining; try another one");
    absl::StatusOr<AdmissionQueue::Place> place = admission_.Enter(session);
    if (!place.ok()) return place.status();
    start = *place == AdmissionQueue::Place::kRunning;
    driver = std::make_shared<GenerationDriver>(context_, std::move(spec), std::move(client),
                                                std::move(retokenize));
    drivers_[session] = driver;
  }
  if (start) driver->Start();
  return driver;
}

void GenerationRegistry::OnDone(const SessionId& session) {
  std::shared_ptr<GenerationDriver> next;
  {
    MutexLock lock(&mutex_);
    const std::optional<SessionId> admitted = admission_.Leave(session);
    if (admitted.has_value()) {
      const auto it = drivers_.find(*admitted);
      if (it != drivers_.end()) next = it->second;
    }
    ended_.NotifyAll();
  }
  if (next != nullptr) next->Start();
}

absl::Status GenerationRegistry::Cancel(const SessionId& session) {
  std::shared_ptr<GenerationDriver> driver;
  {
    MutexLock lock(&mutex_);
    const auto it = drivers_.find(session);
    if (it != drivers_.end()) driver = it->second;
  }
  if (driver == nullptr) {
    return absl::NotFoundError(absl::StrCat("no generation ", session.ToHex(), " runs here"));
  }
  driver->Cancel(absl::CancelledError("cancelled by CancelGeneration"));
  return absl::OkStatus();
}

std::vector<GenerationDriver::Info> GenerationRegistry::List(const std::optional<SessionId>& after,
                                                             size_t count) const {
  std::vector<GenerationDriver::Info> infos;
  for (const auto& driver : Drivers()) {
    if (infos.size() >= count) break;
    if (after.has_value() && driver->session() <= *after) continue;
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

GenerationRegistry::Counts GenerationRegistry::counts() const {
  Counts counts;
  for (const auto& driver : Drivers()) {
    if (driver->waits_for_room()) ++counts.queued;
  }
  MutexLock lock(&mutex_);
  counts.queued += admission_.queued();
  counts.running = admission_.running();
  counts.draining = draining_;
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
  metrics_.queue_depth.Set(static_cast<double>(now_counts.queued));
}

void GenerationRegistry::OnShardsChanged() {
  for (const auto& driver : Drivers()) driver->OnShardsChanged();
}

}  // namespace kvmesh::router
