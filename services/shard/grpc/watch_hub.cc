#include "services/shard/grpc/watch_hub.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::shard {
namespace {

constexpr uint64_t kHeartbeatDefaultMs = 2000;
constexpr uint64_t kHeartbeatMaxMs = 60000;
constexpr size_t kWatchersMax = 1024;

}  // namespace

class WatchHub::Watcher final : public grpc::ServerWriteReactor<v1::WatchResponse> {
 public:
  Watcher(WatchHub& hub, uint64_t heartbeat_ticks)
      : hub_(hub),
        heartbeat_ticks_(heartbeat_ticks),
        timer_(hub.runtime_.metrics().metrics(), hub.runtime_.clock(), "Watch") {}

  void Keep(std::shared_ptr<Watcher> self) { self_ = std::move(self); }

  // Sends the facts if `changed` or the heartbeat is due; a change meets a write in flight: after
  // it.
  void Tick(bool changed) {
    bool write = false;
    {
      MutexLock lock(&mutex_);
      due_ |= changed || ++ticks_ >= heartbeat_ticks_;
      write = TakeWrite();
    }
    if (write) Write();
  }

  void End(const absl::Status& status) {
    bool finish = false;
    {
      MutexLock lock(&mutex_);
      if (status_.has_value()) return;
      status_ = rpc::ToGrpc(status);
      finish = TakeFinish();
    }
    if (finish) SendFinish();
  }

  void OnWriteDone(bool ok) override {
    bool write = false;
    bool finish = false;
    {
      MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok && !status_.has_value()) status_ = grpc::Status::CANCELLED;
      finish = TakeFinish();
      write = !finish && TakeWrite();
    }
    if (finish) SendFinish();
    if (write) Write();
  }
  void OnCancel() override { End(absl::CancelledError("the watcher left")); }
  void OnDone() override {
    const std::shared_ptr<Watcher> self = std::move(self_);
    hub_.Remove(self);
  }

 private:
  bool TakeWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!due_ || writing_ || status_.has_value()) return false;
    due_ = false;
    ticks_ = 0;
    writing_ = true;
    return true;
  }
  bool TakeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !writing_ && status_.has_value() && !std::exchange(finishing_, true);
  }
  void Write() {
    response_ = hub_.facts_(hub_.runtime_.Snapshot());
    StartWrite(&response_);
  }
  void SendFinish() {
    grpc::Status status;
    {
      MutexLock lock(&mutex_);
      status = *status_;
    }
    timer_.Finish(rpc::CodeName(status.error_code()));
    Finish(status);
  }

  WatchHub& hub_;
  const uint64_t heartbeat_ticks_;
  metrics::RpcTimer timer_;
  std::shared_ptr<Watcher> self_;
  v1::WatchResponse response_;  // owned by gRPC while writing_
  Mutex mutex_;
  bool due_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t ticks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
};

WatchHub::WatchHub(ShardRuntime& runtime,
                   std::function<v1::WatchResponse(const ShardSnapshot&)> facts)
    : runtime_(runtime), facts_(std::move(facts)) {}

WatchHub::~WatchHub() = default;

grpc::ServerWriteReactor<v1::WatchResponse>* WatchHub::Accept(grpc::CallbackServerContext*,
                                                              const v1::WatchRequest& request) {
  const uint64_t tick_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(kWatchTick));
  const uint64_t heartbeat_ms =
      request.has_heartbeat() ? request.heartbeat().value() : kHeartbeatDefaultMs;
  auto watcher = std::make_shared<Watcher>(*this, heartbeat_ms / tick_ms);
  watcher->Keep(watcher);
  if (heartbeat_ms < tick_ms || heartbeat_ms > kHeartbeatMaxMs) {
    watcher->End(
        absl::InvalidArgumentError(absl::StrCat("heartbeat is ", heartbeat_ms, " ms; ", tick_ms,
                                                " to ", kHeartbeatMaxMs, " ms are allowed")));
    return watcher.get();
  }
  absl::Status refusal;
  {
    MutexLock lock(&mutex_);
    if (stopped_) {
      refusal = absl::UnavailableError("this shard is shutting down");
    } else if (watchers_.size() >= kWatchersMax) {
      refusal = absl::ResourceExhaustedError(absl::StrCat(kWatchersMax, " watchers are connected"));
    } else {
      watchers_.insert(watcher);
    }
  }
  if (refusal.ok()) {
    watcher->Tick(/*changed=*/true);
  } else {
    watcher->End(refusal);
  }
  return watcher.get();
}

std::vector<std::shared_ptr<WatchHub::Watcher>> WatchHub::Watchers() {
  MutexLock lock(&mutex_);
  return {watchers_.begin(), watchers_.end()};
}

void WatchHub::Remove(const std::shared_ptr<Watcher>& watcher) {
  MutexLock lock(&mutex_);
  watchers_.erase(watcher);
}

void WatchHub::Tick() {
  const ShardSnapshot now = runtime_.Snapshot();
  bool changed = false;
  {
    MutexLock lock(&mutex_);
    changed = !now.SameForWatchers(last_);
    last_ = now;
  }
  for (const auto& watcher : Watchers()) watcher->Tick(changed);
}

void WatchHub::Announce() {
  for (const auto& watcher : Watchers()) watcher->Tick(/*changed=*/true);
}

void WatchHub::Stop() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  for (const auto& watcher : Watchers()) {
    watcher->End(absl::UnavailableError("this shard is shutting down"));
  }
}

}  // namespace kvmesh::shard
