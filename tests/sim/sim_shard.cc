#include "tests/sim/sim_shard.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/sha256.h"
#include "common/slab/reader.h"
#include "services/shard/core/restore_reader.h"

namespace kvmesh::sim {
namespace {

testing::ToyOptions EngineOptions(const SimShardOptions& options) {
  return {.layer_count = kSimLayers,
          .layers = options.layers,
          .supports_kv_cache = options.supports_kv_cache};
}

shard::HopOptions OptionsOfHop(const SimShardOptions& options, InstanceId instance,
                               const shard::EngineInfo& info, const shard::Vocabulary* vocabulary,
                               bool checkpoints) {
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
  if (checkpoints && options.supports_kv_cache) {
    hop.features = {forward::kCheckpointsFeature};
    hop.checkpoints = {.enabled = true, .fragments = true, .min_tokens = kSimMinTokens};
    hop.vocabulary = vocabulary;
    hop.store.keep_evicted = true;
  }
  hop.store.block_tokens = info.block_tokens;
  hop.store.bytes_per_token = info.state_bytes[0].bytes_per_token;
  return hop;
}

// What a store answers to a Get of these layers; a slab that it finds bad, nothing.
std::string AnswerOf(const std::string& file, const shard::SlabRead& read, size_t tokens) {
  const slab::MemorySource source(file);
  const absl::StatusOr<slab::Envelope> envelope = slab::ReadEnvelope(source);
  if (!envelope.ok()) return "";
  std::string answer = file.substr(0, slab::kHeadBytes + envelope->meta.meta_bytes);
  for (const uint32_t layer : read.layers) {
    const auto pieces = slab::PiecesOf(envelope->meta, layer, static_cast<uint32_t>(tokens));
    if (!pieces.ok()) return "";
    for (const slab::Piece& piece : *pieces) answer += file.substr(piece.offset, piece.length);
  }
  return answer + file.substr(file.size() - slab::kTrailerBytes);
}

std::optional<shard::RestoreFailure> ReadSlab(const std::string& file, const shard::SlabRead& read,
                                              const shard::RestoreJob& job,
                                              const shard::Engine& engine,
                                              const shard::Vocabulary& vocabulary,
                                              shard::RestoredState* restored) {
  shard::RestoreReader reader({.read = read,
                               .cache_namespace = job.cache_namespace,
                               .tokens = job.tokens,
                               .kv_dtype = slab::DType::kF32,
                               .vocabulary = vocabulary,
                               .state = restored->state},
                              file.size());
  std::optional<shard::RestoreFailure> failure =
      reader.Append(AnswerOf(file, read, job.tokens.size()));
  if (!failure.has_value()) failure = reader.Finish();
  if (!failure.has_value() && restored->last_row.empty()) {
    restored->last_row = reader.LastRow(engine.info().layers.end);
  }
  return failure;
}

shard::SlabFacts FactsOf(const shard::EngineInfo& info) {
  shard::SlabFacts facts = shard::SlabFactsOf(info);
  facts.min_tokens = kSimMinTokens;
  facts.align_tokens = kSimAlignTokens;
  return facts;
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
                   Network& network, SimArbiter* arbiter)
    : options_(options),
      instance_(instance),
      events_(events),
      network_(network),
      arbiter_(arbiter),
      engine_(EngineOptions(options)),
      facts_(FactsOf(engine_.info())),
      hop_(OptionsOfHop(options, instance, engine_.info(), &vocabulary_, arbiter != nullptr)) {}

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
    } else if (const auto* save = std::get_if<shard::StartSave>(&effect)) {
      Save(save->job);
    } else if (const auto* restore = std::get_if<shard::StartRestore>(&effect)) {
      Restore(restore->job);
    } else if (const auto* end_down = std::get_if<shard::EndDown>(&effect)) {
      network_.Cancel(down_.at(end_down->stream));
    }  // a restore that is given up ends when it ends
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

// A process that dies meanwhile stores nothing.
void SimShard::Save(const std::shared_ptr<shard::SaveJob>& job) {
  events_.After(options_.store_time, [this, job] {
    Input([this, job] {
      if (!arbiter_->away(events_.now())) hop_.OnSaveStarted(job->id);
    });
  });
  events_.After(2 * options_.store_time, [this, job] { Input([this, job] { EndSave(job); }); });
}

void SimShard::EndSave(const std::shared_ptr<shard::SaveJob>& job) {
  if (arbiter_->away(events_.now())) {
    hop_.OnSaveEnded(job->id, shard::SaveDrop::kStoreUnavailable, events_.now());
    return;
  }
  const bool fragment = job->fragment();
  const WriteId write = fragment ? arbiter_->ReserveFragment() : job->write_id;
  absl::StatusOr<shard::SlabDraft> draft =
      shard::DraftSlab(job->snapshot, job->reason, facts_, vocabulary_);
  ASSERT_TRUE(draft.ok()) << draft.status();
  const std::atomic<bool> cancel{false};
  const auto built = shard::BuildSlab(*std::move(draft), std::move(job->snapshot), write,
                                      /*now_s=*/1'700'000'000, facts_, cancel);
  ASSERT_TRUE(built.ok()) << built.status();
  arbiter_->Put((*built)->image().ToString(), fragment);
  hop_.OnSaveEnded(job->id, std::nullopt, events_.now());
}

void SimShard::Restore(const shard::RestoreJob& job) {
  // Shared because std::function copies what it holds.
  auto shared = std::make_shared<shard::RestoreJob>(job);
  events_.After(options_.store_time, [this, shared] {
    Input([this, shared] { hop_.OnRestoreDone(shared->stream, ReadAll(*shared), events_.now()); });
  });
}

shard::RestoreResult SimShard::ReadAll(const shard::RestoreJob& job) const {
  shard::RestoredState restored{.state = engine_.NewState()};
  for (const shard::SlabRead& read : job.reads) {
    const std::string* file = arbiter_->Get(read.slab);
    if (arbiter_->away(events_.now()) || file == nullptr) {
      return shard::RestoreFailure{.fault = file == nullptr ? shard::RestoreFault::kNotFound
                                                            : shard::RestoreFault::kUnavailable,
                                   .slab = read.slab};
    }
    std::optional<shard::RestoreFailure> failure =
        ReadSlab(*file, read, job, engine_, vocabulary_, &restored);
    if (failure.has_value()) return *failure;
  }
  return restored;
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
      shard::JobResult result = runner_.Run(*shared);
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
  facts.features = hop_.options().features;
  facts.state_bytes = {.per_token = engine_.info().state_bytes[0].bytes_per_token};
  if (options_.layers.begin == 0) facts.embedding_digest = Sha256Of("toy embedding");
  if (options_.layers.end == kSimLayers) facts.head_digest = Sha256Of("toy head");
  return facts;
}

}  // namespace kvmesh::sim
