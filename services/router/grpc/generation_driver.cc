#include "services/router/grpc/generation_driver.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/router/grpc/session_calls.h"

namespace kvmesh::router {
namespace {

// The router enforces deadlines; a stream's own lies behind, for the case that the router's word
// does not get through.
constexpr absl::Duration kStreamDeadlineSlack = absl::Seconds(10);

absl::Time StreamDeadline(const GenerationSpec& spec, MonoTime now) {
  if (spec.deadline == absl::InfiniteDuration()) return absl::InfiniteFuture();
  return absl::Now() + (spec.deadline - now) + kStreamDeadlineSlack;
}

}  // namespace

GenerationDriver::GenerationDriver(DriverContext& context, GenerationSpec spec,
                                   std::shared_ptr<GenerationClient> client, Retokenizer retokenize)
    : context_(context),
      session_(spec.session),
      tenant_(spec.tenant),
      trace_(ParseTraceparent(spec.traceparent).value_or(Trace())),
      log_id_(absl::StrCat("session ", spec.session.ToHex(), trace_.exists() ? " trace " : "",
                           trace_.trace_id)),
      stream_deadline_(StreamDeadline(spec, context.clock.Now())),
      client_(std::move(client)),
      created_at_(context.clock.Now()),
      next_timer_ns_(absl::ToInt64Nanoseconds(spec.deadline)),
      generation_(std::move(spec), context.limits, *client_, std::move(retokenize),
                  context.checkpoints == nullptr ? nullptr : &context.checkpoints->setup) {
  context_.live.Add();
}

GenerationDriver::~GenerationDriver() {
  context_.live.Remove();
}

template <typename Input>
void GenerationDriver::Apply(Input input) {
  bool perform = false;
  {
    MutexLock lock(&mutex_);
    const MonoTime now = context_.clock.Now();
    generation_.SetReading(client_->wants_tokens(), now);
    input(generation_, now);
    TakeEffects();
    perform = !std::exchange(performing_, true);
  }
  if (perform) PerformAll();
  client_->Deliver();
}

void GenerationDriver::TakeEffects() {
  for (Effect& effect : generation_.TakeEffects()) effects_.push_back(std::move(effect));
  next_timer_ns_ = absl::ToInt64Nanoseconds(generation_.NextTimer());
  waits_for_room_ = generation_.waits_for_room();
  answered_ = generation_.answered();
}

void GenerationDriver::PerformAll() {
  for (;;) {
    std::deque<Effect> batch;
    {
      MutexLock lock(&mutex_);
      if (effects_.empty()) {
        performing_ = false;
        finished_ = generation_.finished();
        break;
      }
      batch.swap(effects_);
    }
    for (Effect& effect : batch) std::visit([this](auto& each) { Perform(each); }, effect);
  }
  // Streams that were left for a newer attempt have had their Close; nobody waits for them any
  // more.
  if (finished_) Abandon();
}

void GenerationDriver::Abandon() {
  MutexLock lock(&streams_mutex_);
  for (auto& [attempt, stream] : streams_) stream->Cancel();
}

void GenerationDriver::Start() {
  const absl::Duration queued = context_.clock.Now() - created_at_;
  queued_ns_ = absl::ToInt64Nanoseconds(queued);
  context_.metrics.queued.Observe(absl::ToDoubleSeconds(queued));
  Apply([](Generation& generation, MonoTime now) { generation.Start(now); });
}

void GenerationDriver::Cancel(const absl::Status& status) {
  Apply([&status](Generation& generation, MonoTime now) { generation.Cancel(status, now); });
}

void GenerationDriver::Poke() {
  Apply([](Generation&, MonoTime) {});
}

void GenerationDriver::OnShardsChanged() {
  Apply([](Generation& generation, MonoTime now) { generation.OnShardsChanged(now); });
}

void GenerationDriver::Tick() {
  Apply([](Generation& generation, MonoTime now) { generation.Tick(now); });
}

void GenerationDriver::Perform(NeedRoute& effect) {
  absl::StatusOr<RoutePlan> route =
      PlanRoute(context_.shards.Facts(), context_.identity, effect.request);
  if (!route.ok()) LOG(WARNING) << log_id_ << ": no route: " << route.status().message();
  MutexLock lock(&mutex_);
  generation_.OnRoute(std::move(route), context_.clock.Now());
  TakeEffects();
}

void GenerationDriver::Perform(OpenStream& effect) {
  const StreamAttempt attempt = effect.attempt;
  const std::shared_ptr<GenerationDriver> self = shared_from_this();
  const std::string& address = effect.open.hops[0].address;
  std::shared_ptr<v1::ShardService::Stub> stub = context_.shards.StubFor(address);
  if (stub == nullptr) {
    return Apply([attempt, &address](Generation& generation, MonoTime now) {
      generation.OnStreamEnd(
          attempt, absl::UnavailableError(absl::StrCat(address, " is no shard any more")), now);
    });
  }
  std::shared_ptr<ForwardStream> stream =
      ForwardStream::Create(std::move(stub), stream_deadline_,
                            {.on_answer =
                                 [self, attempt](const forward::Answer& answer) {
                                   self->Apply([&](Generation& generation, MonoTime now) {
                                     generation.OnAnswer(attempt, answer, now);
                                   });
                                 },
                             .on_end =
                                 [self, attempt](const absl::Status& status) {
                                   self->ForgetStream(attempt);
                                   self->Apply([&](Generation& generation, MonoTime now) {
                                     generation.OnStreamEnd(attempt, status, now);
                                   });
                                 }});
  {
    MutexLock lock(&streams_mutex_);
    streams_[attempt] = stream;
  }
  stream->Start();
  stream->Send(std::move(effect.open));
}

void GenerationDriver::ForgetStream(StreamAttempt attempt) {
  MutexLock lock(&streams_mutex_);
  streams_.erase(attempt);
}

void GenerationDriver::Perform(SendFrame& effect) {
  std::shared_ptr<ForwardStream> stream;
  {
    MutexLock lock(&streams_mutex_);
    const auto it = streams_.find(effect.attempt);
    if (it == streams_.end()) return;  // it has ended; the generation hears of that, or has
    stream = it->second;
  }
  stream->Send(std::move(effect.frame));
}

void GenerationDriver::Perform(EndStream& effect) {
  MutexLock lock(&streams_mutex_);
  const auto it = streams_.find(effect.attempt);
  if (it != streams_.end()) it->second->Cancel();
}

void GenerationDriver::Perform(ProbeSessions& effect) {
  const std::shared_ptr<GenerationDriver> self = shared_from_this();
  const StreamAttempt attempt = effect.attempt;
  for (size_t hop = 0; hop < effect.hops.size(); ++hop) {
    ProbeSession(context_.shards.StubFor(effect.hops[hop].address), session_,
                 context_.probe_timeout, [self, attempt, hop](bool answered) {
                   self->Apply([&](Generation& generation, MonoTime now) {
                     generation.OnSessionProbe(attempt, hop, answered, now);
                   });
                 });
  }
}

void GenerationDriver::Perform(DropSession& effect) {
  SendDropSession(context_.shards.StubFor(effect.hop.address), effect.session, effect.epoch);
}

// A generation has effects on checkpoints only where there are ports for them.
void GenerationDriver::Perform(AwaitParent& effect) {
  context_.checkpoints->meta.Await(effect, trace_, [self = shared_from_this(), call = effect.call] {
    self->Apply([call](Generation& generation, MonoTime now) { generation.OnParent(call, now); });
  });
}

void GenerationDriver::Perform(LookupRow& effect) {
  const MonoTime asked = context_.clock.Now();
  context_.checkpoints->meta.Lookup(effect, trace_,
                                    [self = shared_from_this(), call = effect.call,
                                     asked](absl::StatusOr<std::optional<FoundRow>> found) {
                                      self->context_.metrics.CountLookup(
                                          found, self->context_.clock.Now() - asked);
                                      self->Apply([&](Generation& generation, MonoTime now) {
                                        generation.OnLookup(call, std::move(found), now);
                                      });
                                    });
}

void GenerationDriver::Perform(ReadCheckpoint& effect) {
  const MetaCall call = effect.call;
  context_.checkpoints->reader.Read(
      std::move(effect), trace_,
      [self = shared_from_this(), call](absl::StatusOr<CheckpointRead> read) {
        if (!read.ok()) LOG(WARNING) << self->log_id_ << ": checkpoint: " << read.status();
        self->Apply([&](Generation& generation, MonoTime now) {
          generation.OnCheckpoint(call, std::move(read), now);
        });
      });
}

void GenerationDriver::Perform(AwaitFragment& effect) {
  context_.checkpoints->meta.Await(
      effect, trace_,
      [self = shared_from_this(), call = effect.call](const absl::StatusOr<FoundFragment>& found) {
        self->Apply(
            [&](Generation& generation, MonoTime now) { generation.OnFragment(call, found, now); });
      });
}

void GenerationDriver::Perform(ReserveRow& effect) {
  context_.checkpoints->meta.Reserve(
      effect, tenant_->limits.store_bytes, trace_,
      [self = shared_from_this(), call = effect.call](const absl::StatusOr<Reservation>& reserved) {
        if (ReasonOf(reserved.status()) == "QUOTA") {
          self->context_.metrics.CountTenantRefusal(self->tenant(), "store_bytes");
        }
        self->Apply([&](Generation& generation, MonoTime now) {
          generation.OnReserved(call, reserved, now);
        });
      });
}

void GenerationDriver::Perform(EndLease& effect) {
  context_.checkpoints->meta.End(effect);
}

void GenerationDriver::Perform(CancelReservation& effect) {
  context_.checkpoints->meta.Cancel(effect);
}

void GenerationDriver::Perform(RenewHolds& effect) {
  context_.checkpoints->meta.Renew(effect);
}

void GenerationDriver::Perform(SaveEnded& effect) {
  context_.metrics.CountSave(effect);
}

void GenerationDriver::Perform(Event& effect) {
  context_.metrics.Count(effect);
  const bool fault = effect.kind != EventKind::kReprefill && effect.kind != EventKind::kRefused &&
                     effect.kind != EventKind::kRepair;
  LOG_IF(WARNING, fault) << log_id_ << ": " << EventName(effect.kind) << ": " << effect.detail;
}

void GenerationDriver::Perform(Done& effect) {
  GenerationResult result;
  {
    MutexLock lock(&mutex_);
    const std::vector<uint32_t>& history = generation_.history();
    result = {
        .stats = generation_.stats(),
        .reuse = generation_.reuse(),
        .effective_prompt = {history.begin(),
                             history.begin() + static_cast<ptrdiff_t>(generation_.prompt_tokens())},
        .finish_key = generation_.finish_key()};
  }
  context_.metrics.CountReuse(result.reuse);
  client_->OnDone(effect.status, effect.reason, result);
  const uint64_t tokens_run = result.effective_prompt.size() + result.stats.tokens;
  context_.metrics.CountTenantTokens(tenant(), tokens_run);
  context_.on_done(session_, tokens_run);
}

GenerationDriver::Info GenerationDriver::info() const {
  MutexLock lock(&mutex_);
  return {.session = session_,
          .tenant = tenant(),
          .phase = generation_.phase(),
          .waits_for_room = generation_.waits_for_room(),
          .prompt_tokens = static_cast<uint32_t>(generation_.spec().prompt.size()),
          .output_tokens = generation_.stats().tokens,
          .epoch = generation_.epoch(),
          .attempt = generation_.attempt(),
          .age = context_.clock.Now() - created_at_,
          .hops = generation_.hops()};
}

}  // namespace kvmesh::router
