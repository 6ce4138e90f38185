#include "services/shard/grpc/shard_runtime.h"

#include <glog/logging.h>

#include <type_traits>
#include <utility>

#include "services/shard/grpc/down_stream.h"
#include "services/shard/grpc/up_stream.h"

namespace kvmesh::shard {
namespace {

constexpr absl::Duration kWakeUp = absl::Seconds(1);

}  // namespace

ShardRuntime::ShardRuntime(const HopOptions& options, const Clock& clock, Engine& engine,
                           const Vocabulary& vocabulary, ShardMetrics& metrics,
                           const CheckpointIoOptions& checkpoints,
                           const std::shared_ptr<rpc::TlsIdentity>& tls)
    : options_(options),
      clock_(clock),
      engine_(engine),
      vocabulary_(vocabulary),
      metrics_(metrics),
      runner_(engine, vocabulary),
      hop_(options),
      checkpoints_(options.checkpoints.enabled ? MakeCheckpoints(checkpoints) : nullptr),
      channels_(kIdleChannelsMax, tls) {
  metrics_.Export(hop_, engine_.kv_saturated());
}

ShardRuntime::~ShardRuntime() {
  Stop();
}

void ShardRuntime::Start() {
  compute_thread_ = std::thread([this] { ComputeLoop(); });
}

void ShardRuntime::Stop() {
  std::vector<std::shared_ptr<DownStream>> downs;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    work_ready_.NotifyAll();
    for (auto& [id, down] : downs_) downs.push_back(down);
  }
  for (auto& down : downs) down->Cancel();
  if (compute_thread_.joinable()) compute_thread_.join();
  if (checkpoints_ != nullptr) checkpoints_->Stop();
  MutexLock lock(&mutex_);
  // gRPC ends every cancelled call; until then it may still call into this object.
  while (calls_open_ > 0) changed_.WaitFor(&mutex_, kWakeUp);
}

template <typename Input>
auto ShardRuntime::Do(Input input) {
  struct AfterLock {
    ShardRuntime* runtime;
    bool wake = false;
    ~AfterLock() {
      // A thread that was woken under the lock would wait for it at once, and be woken twice.
      if (wake) runtime->work_ready_.NotifyOne();
      runtime->Flush();
    }
  } after{this};
  MutexLock lock(&mutex_);
  if constexpr (std::is_void_v<decltype(input(hop_))>) {
    input(hop_);
    after.wake = hop_.HasWork();
  } else {
    auto result = input(hop_);
    after.wake = hop_.HasWork();
    return result;
  }
}

std::unique_ptr<CheckpointIo> ShardRuntime::MakeCheckpoints(const CheckpointIoOptions& options) {
  CheckpointIo::Events events{
      .save_started = [this](SaveId id) { Do([&](Hop& hop) { hop.OnSaveStarted(id); }); },
      .save_ended =
          [this](SaveId id, std::optional<SaveDrop> drop) {
            Do([&](Hop& hop) { hop.OnSaveEnded(id, drop, clock_.Now()); });
            MutexLock lock(&mutex_);
            changed_.NotifyAll();
          },
      .restore_done =
          [this](StreamId id, RestoreResult result, absl::Duration took) {
            if (std::holds_alternative<RestoredState>(result)) metrics_.ObserveRestore(took);
            Do([&](Hop& hop) { hop.OnRestoreDone(id, std::move(result), clock_.Now()); });
          }};
  return std::make_unique<CheckpointIo>(options, clock_, engine_, vocabulary_, std::move(events));
}

void ShardRuntime::Flush() {
  for (;;) {
    std::vector<Effect> effects;
    {
      MutexLock lock(&mutex_);
      if (flushing_) return;
      effects = hop_.TakeEffects();
      metrics_.Export(hop_, engine_.kv_saturated());
      if (effects.empty()) return;
      flushing_ = true;
    }
    for (Effect& effect : effects) Perform(std::move(effect));
    MutexLock lock(&mutex_);
    flushing_ = false;
  }
}

void ShardRuntime::Perform(Effect effect) {
  if (auto* answer = std::get_if<AnswerUp>(&effect)) {
    if (auto up = FindUp(answer->stream)) up->Send(std::move(answer->answer));
  } else if (auto* end = std::get_if<EndUp>(&effect)) {
    if (auto up = FindUp(end->stream)) up->End(end->status);
  } else if (auto* open = std::get_if<OpenDown>(&effect)) {
    CallNextHop(std::move(*open));
  } else if (auto* send = std::get_if<SendDown>(&effect)) {
    if (auto down = FindDown(send->stream)) down->Send(std::move(send->frame));
  } else if (auto* cancel = std::get_if<EndDown>(&effect)) {
    if (auto down = FindDown(cancel->stream)) down->Cancel();
  } else if (auto* save = std::get_if<StartSave>(&effect)) {
    checkpoints_->Save(save->job);
  } else if (auto* restore = std::get_if<StartRestore>(&effect)) {
    checkpoints_->Restore(std::move(restore->job));
  } else if (auto* given_up = std::get_if<CancelRestore>(&effect)) {
    checkpoints_->CancelRestore(given_up->stream);
  }
}

void ShardRuntime::CallNextHop(OpenDown effect) {
  const std::shared_ptr<UpStream> up = FindUp(effect.stream);
  const auto deadline = up == nullptr ? std::chrono::system_clock::now() : up->deadline();
  auto down = DownStream::Make(*this, effect.stream, effect.hop.address,
                               channels_.Take(effect.hop.address), deadline);
  {
    MutexLock lock(&mutex_);
    downs_[effect.stream] = down;
    ++calls_open_;
  }
  down->Start();
  down->Send(std::move(effect.open));
}

std::shared_ptr<UpStream> ShardRuntime::FindUp(StreamId id) {
  MutexLock lock(&mutex_);
  auto it = ups_.find(id);
  return it == ups_.end() ? nullptr : it->second;
}

std::shared_ptr<DownStream> ShardRuntime::FindDown(StreamId id) {
  MutexLock lock(&mutex_);
  auto it = downs_.find(id);
  return it == downs_.end() ? nullptr : it->second;
}

StreamId ShardRuntime::Register(std::shared_ptr<UpStream> stream) {
  MutexLock lock(&mutex_);
  const StreamId id{next_stream_++};
  ups_[id] = std::move(stream);
  return id;
}

void ShardRuntime::Unregister(StreamId id) {
  std::shared_ptr<UpStream> last_but_one;  // not destroyed under the lock
  MutexLock lock(&mutex_);
  auto it = ups_.find(id);
  if (it == ups_.end()) return;
  last_but_one = std::move(it->second);
  ups_.erase(it);
  changed_.NotifyAll();
}

void ShardRuntime::OnFrame(StreamId id, forward::Frame frame) {
  Do([&](Hop& hop) { hop.OnFrame(id, std::move(frame), clock_.Now()); });
}

void ShardRuntime::OnBadFrame(StreamId id, const absl::Status& status) {
  Do([&](Hop& hop) { hop.OnBadFrame(id, status, clock_.Now()); });
}

void ShardRuntime::OnUpLost(StreamId id) {
  Do([&](Hop& hop) { hop.OnUpLost(id, clock_.Now()); });
}

void ShardRuntime::OnDownAnswer(StreamId id, forward::Answer answer) {
  Do([&](Hop& hop) { hop.OnDownAnswer(id, std::move(answer), clock_.Now()); });
}

void ShardRuntime::OnDownEnd(StreamId id, const std::string& address,
                             std::shared_ptr<grpc::Channel> channel, const absl::Status& status) {
  std::shared_ptr<DownStream> last_but_one;  // not destroyed under the lock
  channels_.Return(address, std::move(channel), absl::IsUnavailable(status));
  Do([&](Hop& hop) { hop.OnDownEnd(id, status, clock_.Now()); });
  MutexLock lock(&mutex_);
  if (auto it = downs_.find(id); it != downs_.end()) {
    last_but_one = std::move(it->second);
    downs_.erase(it);
  }
  --calls_open_;
  changed_.NotifyAll();
}

bool ShardRuntime::DropSession(const SessionId& session, SessionEpoch epoch) {
  return Do([&](Hop& hop) { return hop.DropSession(session, epoch, clock_.Now()); });
}

std::optional<SessionView> ShardRuntime::GetSession(const SessionId& session) {
  return Do([&](Hop& hop) { return hop.GetSession(session, clock_.Now()); });
}

std::vector<SessionView> ShardRuntime::ListSessions(const std::optional<SessionId>& after,
                                                    size_t count) {
  MutexLock lock(&mutex_);
  return hop_.ListSessions(after, count, clock_.Now());
}

void ShardRuntime::Drain() {
  Do([&](Hop& hop) { hop.Drain(clock_.Now()); });
}

bool ShardRuntime::WaitUntilQuiet(absl::Duration timeout) {
  const MonotonicClock real;
  const MonoTime end = real.Now() + timeout;
  MutexLock lock(&mutex_);
  for (;;) {
    if (hop_.quiet() && ups_.empty() && calls_open_ == 0) return true;
    const absl::Duration left = end - real.Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(&mutex_, std::min(left, kWakeUp));
  }
}

void ShardRuntime::Tick() {
  Do([&](Hop& hop) { hop.Tick(clock_.Now()); });
  std::vector<std::shared_ptr<UpStream>> ups;
  {
    MutexLock lock(&mutex_);
    for (auto& [id, up] : ups_) ups.push_back(up);
  }
  for (auto& up : ups) up->CutIfStalled(clock_.Now());
}

ShardSnapshot ShardRuntime::Snapshot() const {
  MutexLock lock(&mutex_);
  return {.live_sessions = static_cast<uint32_t>(hop_.store().count(SessionPhase::kLive)),
          .held_sessions = static_cast<uint32_t>(hop_.store().size()),
          .bytes_used = hop_.store().bytes_used(),
          .draining = hop_.draining()};
}

absl::Duration ShardRuntime::ComputingFor() const {
  MutexLock lock(&mutex_);
  return computing_since_.has_value() ? clock_.Now() - *computing_since_ : absl::ZeroDuration();
}

void ShardRuntime::ComputeLoop() {
  for (;;) {
    std::optional<Job> job;
    {
      MutexLock lock(&mutex_);
      while (!hop_.HasWork() && !stopping_) work_ready_.WaitFor(&mutex_, kWakeUp);
      if (stopping_) return;
      job = hop_.NextJob(clock_.Now());
      if (job.has_value()) computing_since_ = clock_.Now();
    }
    Flush();  // also frames that were settled without computing
    if (job.has_value()) RunOne(*std::move(job));
  }
}

void ShardRuntime::RunOne(Job job) {
  const StreamId id = job.stream;
  const bool decode = job.frame.cache_mode == forward::CacheMode::kDecode;
  metrics_.ObserveWait(job.waited);
  const MonoTime start = clock_.Now();
  JobResult result = runner_.Run(job);
  metrics_.ObserveCompute(decode, clock_.Now() - start);
  Do([&](Hop& hop) { hop.OnJobDone(id, std::move(result), clock_.Now()); });
  MutexLock lock(&mutex_);
  computing_since_.reset();
  changed_.NotifyAll();
}

}  // namespace kvmesh::shard
