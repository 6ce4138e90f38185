#include "tests/sim/sim_shard.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/sha256.h"

namespace kvmesh::sim {
namespace {

testing::ToyOptions EngineOptions(const SimShardOptions& options) {
  return {.layer_count = kSimLayers,
          .layers = options.layers,
          .supports_kv_cache = options.supports_kv_cache};
}

shard::HopOptions OptionsOfHop(const SimShardOptions& options, InstanceId instance,
                               const shard::EngineInfo& info) {
  shard::HopOptions hop{.instance = instance,
                        .layers = info.layers,
                        .layer_count = info.config.layer_count,
                        .hidden_size = info.config.hidden_size,
                        .vocab_size = info.config.vocab_size,
                        .context_length = info.config.context_length,
                        .quant = info.quant,
                        .caching = options.supports_kv_cache,
                        .store = options.store,
                        .peer_allowed = [](const std::string&) { return true; }};
  hop.store.block_tokens = info.block_tokens;
  hop.store.bytes_per_token = info.state_bytes[0].bytes_per_token;
  return hop;
}

}  // namespace

InstanceId SimInstance(uint64_t number) {
  InstanceId id;
  std::memcpy(id.mutable_data(), &number, sizeof(number));
  return id;
}

router::ModelIdentity SimModel() {
  return {.layer_count = kSimLayers,
          .config_digest = Sha256Of("toy config"),
          .tokenizer_digest = Sha256Of("toy tokenizer")};
}

SimShard::SimShard(const SimShardOptions& options, InstanceId instance, EventQueue& events,
                   Network& network)
    : options_(options),
      instance_(instance),
      events_(events),
      network_(network),
      engine_(EngineOptions(options)),
      hop_(OptionsOfHop(options, instance, engine_.info())) {}

void SimShard::Start() {
  alive_ = true;
  network_.Listen(options_.address,
                  {.on_frame =
                       [this](StreamKey key, forward::Frame frame) {
                         auto shared = std::make_shared<forward::Frame>(std::move(frame));
                         Input([this, key, shared] {
                           hop_.OnFrame(shard::StreamId{static_cast<uint64_t>(key)},
                                        std::move(*shared), events_.now());
                         });
                       },
                   .on_lost =
                       [this](StreamKey key) {
                         Input([this, key] {
                           hop_.OnUpLost(shard::StreamId{static_cast<uint64_t>(key)},
                                         events_.now());
                         });
                       }});
  TickEverySecond();
}

void SimShard::Stop() {
  alive_ = false;
  network_.Kill(options_.address);
}

void SimShard::Freeze(absl::Duration time) {
  // A frozen one keeps its hour: what waits for the thaw would lose its order.
  if (events_.now() < frozen_until_) return;
  frozen_until_ = events_.now() + time;
}

void SimShard::Drain() {
  Input([this] { hop_.Drain(events_.now()); });
}

void SimShard::DropSession(const SessionId& session, SessionEpoch epoch) {
  Input([this, session, epoch] { hop_.DropSession(session, epoch, events_.now()); });
}

void SimShard::Input(std::function<void()> input) {
  if (!alive_) return;
  if (events_.now() < frozen_until_) {
    events_.After(frozen_until_ - events_.now(),
                  [this, input = std::move(input)] { Input(input); });
    return;
  }
  input();
  Perform();
  Compute();
}

void SimShard::Perform() {
  for (shard::Effect& effect : hop_.TakeEffects()) {
    if (auto* answer = std::get_if<shard::AnswerUp>(&effect)) {
      network_.SendAnswer(StreamKey{static_cast<uint64_t>(answer->stream)},
                          std::move(answer->answer));
    } else if (const auto* end = std::get_if<shard::EndUp>(&effect)) {
      network_.Finish(StreamKey{static_cast<uint64_t>(end->stream)}, end->status);
    } else if (const auto* open = std::get_if<shard::OpenDown>(&effect)) {
      CallNext(*open);
    } else if (auto* send = std::get_if<shard::SendDown>(&effect)) {
      network_.SendFrame(down_.at(send->stream), std::move(send->frame));
    } else {
      network_.Cancel(down_.at(std::get<shard::EndDown>(effect).stream));
    }
  }
}

void SimShard::CallNext(const shard::OpenDown& effect) {
  const shard::StreamId stream = effect.stream;
  down_[stream] = network_.Call(
      options_.address, effect.hop.address,
      {.on_answer =
           [this, stream](forward::Answer answer) {
             auto shared = std::make_shared<forward::Answer>(std::move(answer));
             Input([this, stream, shared] {
               hop_.OnDownAnswer(stream, std::move(*shared), events_.now());
             });
           },
       .on_end =
           [this, stream](const absl::Status& status) {
             Input([this, stream, status] { hop_.OnDownEnd(stream, status, events_.now()); });
           }});
  network_.SendFrame(down_.at(stream), effect.open);
}

void SimShard::Compute() {
  if (job_out_) return;
  std::optional<shard::Job> job = hop_.NextJob(events_.now());
  Perform();
  if (!job.has_value()) return;
  job_out_ = true;
  auto shared = std::make_shared<shard::Job>(std::move(*job));
  events_.After(options_.compute_time, [this, shared] {
    Input([this, shared] {
      const shard::StreamId stream = shared->stream;
      shard::JobResult result = shard::RunJob(*shared, engine_, vocabulary_);
      job_out_ = false;
      hop_.OnJobDone(stream, std::move(result), events_.now());
    });
  });
}

void SimShard::TickEverySecond() {
  if (!alive_) return;
  Input([this] { hop_.Tick(events_.now()); });
  events_.After(absl::Seconds(1), [this] { TickEverySecond(); });
}

router::ShardFacts SimShard::Facts() const {
  router::ShardFacts facts{.address = options_.address,
                           .instance = instance_,
                           .layers = options_.layers,
                           .layer_count = kSimLayers,
                           .config_digest = SimModel().config_digest,
                           .tokenizer_digest = SimModel().tokenizer_digest,
                           .protocol_version = limits::kProtocolVersion,
                           .quant = testing::kToyQuant,
                           .numerics_id = testing::kToyNumericsId,
                           .supports_kv_cache = options_.supports_kv_cache,
                           .draining = hop_.draining(),
                           .live_sessions = static_cast<uint32_t>(hop_.store().live()),
                           .sessions_max = options_.store.sessions_max,
                           .bytes_max = options_.store.bytes_max,
                           .context_length = engine_.info().config.context_length,
                           .hidden_size = testing::kToyHiddenSize,
                           .vocab_size = testing::kToyVocabSize};
  for (uint32_t layer = options_.layers.begin; layer < options_.layers.end; ++layer) {
    facts.layer_digests.push_back(Sha256Of(absl::StrCat("toy layer ", layer)));
  }
  if (options_.layers.begin == 0) facts.embedding_digest = Sha256Of("toy embedding");
  if (options_.layers.end == kSimLayers) facts.head_digest = Sha256Of("toy head");
  return facts;
}

}  // namespace kvmesh::sim
