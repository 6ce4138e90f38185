#include "services/shard/grpc/shard_server.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"

namespace kvmesh::shard {
namespace {

constexpr char kServiceName[] = "kvmesh.v1.ShardService";
constexpr int kTicksPerSecond = 10;  // of kWatchTick

absl::StatusOr<std::vector<float>> RunOneToken(Engine& engine, SessionState* state) {
  const EngineInfo& info = engine.info();
  const std::vector<uint32_t> tokens = {0};
  std::vector<float> hidden;
  if (info.layers.begin > 0) hidden.assign(info.config.hidden_size, 1.0F);
  StepItem item{.state = state,
                .tokens = tokens,
                .hidden = hidden,
                .want_logits = info.layers.end == info.config.layer_count};
  engine.Step(absl::MakeSpan(&item, 1));
  KVMESH_RETURN_IF_ERROR(item.status);
  std::vector<float> numbers = std::move(item.hidden_out);
  numbers.insert(numbers.end(), item.logits.begin(), item.logits.end());
  return numbers;
}

absl::string_view KindName(model::LayerKind kind) {
  switch (kind) {
    case model::LayerKind::kKeyValue:
      return "key_value";
    case model::LayerKind::kSlidingWindow:
      return "sliding_window";
    case model::LayerKind::kRecurrent:
      return "recurrent";
  }
  return "unknown";
}

std::string Hostname() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

void SetBytes(std::string* field, const Sha256Digest& digest) {
  field->assign(digest.bytes().data(), digest.bytes().size());
}

}  // namespace

absl::StatusOr<SelfTestResult> RunSelfTest(Engine& engine) {
  absl::StatusOr<std::vector<float>> stateless = RunOneToken(engine, nullptr);
  if (!stateless.ok()) {
    return absl::InternalError(
        absl::StrCat("the engine fails its first step: ", stateless.status().message()));
  }
  if (!std::all_of(stateless->begin(), stateless->end(),
                   [](float x) { return std::isfinite(x); })) {
    return absl::InternalError("the engine's first step gives numbers that are not finite");
  }
  SelfTestResult result;
  if (engine.info().supports_kv_cache) {
    SessionState state = engine.NewState();
    const absl::StatusOr<std::vector<float>> cached = RunOneToken(engine, &state);
    result.cache_works = cached.ok() && *cached == *stateless;
  }
  return result;
}

ShardServer::ShardServer(const ShardServerOptions& options, std::unique_ptr<Engine> engine,
                         std::unique_ptr<const Vocabulary> vocabulary)
    : options_(options),
      engine_(std::move(engine)),
      vocabulary_(std::move(vocabulary)),
      peers_(options.peers),
      stores_(options.stores) {}

absl::StatusOr<std::unique_ptr<ShardServer>> ShardServer::Start(
    const ShardServerOptions& options, const Clock& clock, std::unique_ptr<Engine> engine,
    std::unique_ptr<const Vocabulary> vocabulary, const model::ModelDigests& digests) {
  KVMESH_ASSIGN_OR_RETURN(const SelfTestResult test, RunSelfTest(*engine));
  std::unique_ptr<ShardServer> shard(
      new ShardServer(options, std::move(engine), std::move(vocabulary)));
  shard->caching_ = options.caching && test.cache_works;
  if (!shard->caching_) {
    LOG(WARNING) << "this shard keeps no session state ("
                 << (options.caching ? "its layers cannot run with a cache" : "switched off")
                 << "): every route over it is stateless";
  }
  shard->runtime_ = std::make_unique<ShardRuntime>(
      shard->OptionsOfHop(), clock, *shard->engine_, *shard->vocabulary_, shard->metrics_,
      shard->OptionsOfCheckpoints(), options.server.tls);
  shard->service_ = std::make_unique<ShardService>(*shard->runtime_, shard->Description(digests),
                                                   [raw = shard.get()] { raw->Drain(); });
  KVMESH_ASSIGN_OR_RETURN(
      shard->server_, rpc::RpcServer::Start(options.server, {{kServiceName, shard->service_.get()}},
                                            shard->metrics_.metrics()));
  shard->runtime_->Start();
  shard->ticker_ = std::thread([raw = shard.get()] { raw->TickLoop(); });
  return shard;
}

ShardServer::~ShardServer() {
  Shutdown(absl::ZeroDuration());
}

HopOptions ShardServer::OptionsOfHop() const {
  const EngineInfo& info = engine_->info();
  HopOptions hop{
      .instance = options_.instance,
      .layers = info.layers,
      .layer_count = info.config.layer_count,
      .hidden_size = info.config.hidden_size,
      .vocab_size = info.config.vocab_size,
      .context_length = info.config.context_length,
      .quant = info.quant,
      .features = Features(),
      .caching = caching_,
      .stream_idle_max = options_.stream_idle_max,
      .store = {.sessions_max = options_.sessions_max,
                .bytes_max = options_.bytes_max,
                .ttl = options_.ttl,
                .orphan_ttl = options_.orphan_ttl,
                .block_tokens = info.block_tokens},
      .checkpoints = options_.checkpoints,
      .vocabulary = vocabulary_.get(),
      .peer_allowed = [this](const std::string& address) { return peers_.Allows(address); }};
  hop.checkpoints.enabled = caching_ && options_.checkpoints.enabled;
  hop.checkpoints.fragments = hop.checkpoints.enabled && options_.checkpoints.fragments;
  hop.store.keep_evicted = hop.checkpoints.fragments;
  for (const StateBytes& kind : info.state_bytes) {
    hop.store.bytes_per_token += kind.bytes_per_token;
    hop.store.bytes_fixed += kind.bytes_fixed;
  }
  return hop;
}

std::vector<std::string> ShardServer::Features() const {
  if (!caching_ || !options_.checkpoints.enabled) return {};
  return {forward::kCheckpointsFeature};
}

CheckpointIoOptions ShardServer::OptionsOfCheckpoints() const {
  CheckpointIoOptions checkpoints{
      .facts = SlabFactsOf(engine_->info()),
      .model_layers = engine_->info().config.layer_count,
      .meta_address = options_.meta_address,
      .tls = options_.server.tls,
      .store_allowed = [this](const std::string& address) { return stores_.Allows(address); }};
  checkpoints.facts.min_tokens = options_.checkpoints.min_tokens;
  checkpoints.facts.align_tokens = options_.align_tokens;
  checkpoints.facts.hostname = Hostname();
  checkpoints.facts.writer_version = absl::StrCat("kvmesh ", kVersion);
  return checkpoints;
}

v1::DescribeResponse ShardServer::Description(const model::ModelDigests& digests) const {
  const EngineInfo& info = engine_->info();
  const HopOptions hop = OptionsOfHop();
  v1::DescribeResponse description;
  v1::WatchResponse& shard = *description.mutable_shard();
  shard.set_instance_id(options_.instance.bytes().data(), InstanceId::kSize);
  shard.mutable_layers()->set_begin(info.layers.begin);
  shard.mutable_layers()->set_end(info.layers.end);
  shard.set_layer_count(info.config.layer_count);
  for (const Sha256Digest& digest : digests.layers) SetBytes(shard.add_layer_digests(), digest);
  if (!digests.embedding.is_zero()) {
    SetBytes(shard.mutable_embedding_digest(), digests.embedding);
  }
  if (!digests.head.is_zero()) SetBytes(shard.mutable_head_digest(), digests.head);
  SetBytes(shard.mutable_config_digest(), digests.config);
  SetBytes(shard.mutable_tokenizer_digest(), digests.tokenizer);
  shard.set_protocol_version(limits::kProtocolVersion);
  for (const std::string& feature : hop.features) shard.add_features(feature);
  shard.set_quant(info.quant);
  shard.set_numerics_id(info.numerics_id);
  shard.set_supports_kv_cache(caching_);
  shard.mutable_capacity()->set_sessions_max(options_.sessions_max);
  shard.mutable_capacity()->set_bytes_max(options_.bytes_max);
  shard.mutable_capacity()->set_bytes_per_token(hop.store.bytes_per_token);
  shard.mutable_capacity()->set_bytes_fixed(hop.store.bytes_fixed);
  shard.set_context_length(info.config.context_length);
  shard.set_hidden_size(info.config.hidden_size);
  shard.set_vocab_size(info.config.vocab_size);

  const absl::string_view architecture = model::ArchitectureName(info.config.architecture);
  description.set_architecture(architecture.data(), architecture.size());
  for (const StateBytes& kind : info.state_bytes) {
    v1::StateKindBytes& bytes = *description.add_state_bytes();
    bytes.set_kind(std::string(KindName(kind.kind)));
    bytes.set_layers(kind.layers);
    bytes.set_bytes_per_token(kind.bytes_per_token);
    bytes.set_bytes_fixed(kind.bytes_fixed);
  }
  description.set_weight_bytes(info.weight_bytes);
  description.set_weight_bytes_held(info.weight_bytes_held);
  description.set_threads(options_.threads);
  description.set_version(kVersion);
  return description;
}

void ShardServer::Drain() {
  runtime_->Drain();
  service_->watchers().Announce();
}

// Health is honest: not serving while draining, and while a frame runs for longer than any should.
void ShardServer::TickLoop() {
  for (int tick = 0;; ++tick) {
    const absl::Duration computing = runtime_->ComputingFor();
    metrics_.SetComputing(computing);
    server_->SetAlive(computing <= options_.liveness_stall);
    const bool stalled = computing > options_.compute_stall;
    const bool serving = !stalled && !runtime_->Snapshot().draining;
    bool changed = false;
    {
      MutexLock lock(&mutex_);
      if (stopping_) return;
      changed = std::exchange(serving_, serving) != serving;
    }
    if (changed) {
      server_->SetServing(serving);
      if (stalled) LOG(ERROR) << "compute stalls: one frame has run for too long; not serving";
    }
    service_->watchers().Tick();
    if (tick % kTicksPerSecond == 0) runtime_->Tick();
    MutexLock lock(&mutex_);
    if (stopping_) return;
    wake_.WaitFor(&mutex_, kWatchTick);
  }
}

void ShardServer::Shutdown(absl::Duration grace) {
  {
    MutexLock lock(&mutex_);
    if (std::exchange(shut_down_, true)) return;
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (ticker_.joinable()) ticker_.join();
  if (server_ != nullptr) {
    server_->SetServing(false);
    service_->watchers().Stop();
    server_->Shutdown(grace);
  }
  if (runtime_ != nullptr) runtime_->Stop();
}

}  // namespace kvmesh::shard
