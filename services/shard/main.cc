// kvmesh-shard: executes a range of a model's layers. Flags and wiring only.
#include <glog/logging.h>
#include <malloc.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/cpu_count.h"
#include "common/base/status_macros.h"
#include "common/model/model.h"
#include "common/rpc/flags.h"
#include "common/rpc/process.h"
#include "common/text/tokenizer.h"
#include "services/shard/engine/make_engine.h"
#include "services/shard/grpc/checkpoint_flags.h"
#include "services/shard/grpc/memory_limit.h"
#include "services/shard/grpc/shard_server.h"
#include "services/shard/grpc/tokenizer_vocabulary.h"

namespace kvmesh::shard {
namespace {

struct Flags {
  rpc::ServiceFlags service;
  std::string model;
  std::string layers;
  std::string stage;
  std::string peers;
  uint32_t threads = 0;
  std::string numerics;
  std::string kv_dtype = "f16";
  std::string device = "cpu";
  std::string weights_cache;
  bool no_kv_cache = false;
  uint32_t sessions_max = 8;
  int ttl_seconds = 600;
  int orphan_ttl_seconds = 30;
  uint64_t bytes_max = UsableMemoryBytes() / 4;
  int compute_stall_seconds = 60;
  int liveness_stall_seconds = 120;
  CheckpointFlags checkpoints;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--model", flags.model, "Model to serve: a Hugging Face directory or a .gguf file")
      ->required();
  auto* layers = app.add_option("--layers", flags.layers,
                                "Layers to execute, BEGIN:END (END excluded); default: all");
  app.add_option("--stage", flags.stage,
                 "The I-th (from 0) of N near-equal ranges of layers, I/N, in place of --layers")
      ->excludes(layers);
  app.add_option("--peers", flags.peers,
                 "Shards that this one may call, separated by commas: HOST:PORT, or HOST for any "
                 "port there; a name is looked up again and again. \"*\" allows any address. The "
                 "shard with the last layer calls none");
  app.add_option("--threads", flags.threads,
                 "Compute threads; 0: as many as there are usable processors")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  app.add_option("--numerics", flags.numerics,
                 "Order and rounding of all arithmetic, by id; members of a route must agree. "
                 "\"torch\": libtorch; default: the best id of this processor");
  app.add_option("--kv-dtype", flags.kv_dtype,
                 "Type that keys and values are rounded to; members of a route must agree")
      ->capture_default_str()
      ->check(CLI::IsMember({"f16", "bf16", "f32"}));
  app.add_option("--device", flags.device, "Device of libtorch, with --numerics=torch")
      ->capture_default_str();
  app.add_option("--weights-cache", flags.weights_cache,
                 "Folder that keeps packed weights for the next start; default: none");
  app.add_flag("--no-kv-cache", flags.no_kv_cache,
               "Keep no session state: every route over this shard is stateless");
  app.add_option("--kv-max-sessions", flags.sessions_max, "Most sessions held at a time")
      ->envname("MESHNET_KV_MAX_SESSIONS")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--kv-ttl-seconds", flags.ttl_seconds,
                 "Seconds that an idle session is kept without being used")
      ->envname("MESHNET_KV_TTL_SECONDS")
      ->capture_default_str()
      ->check(CLI::Range(1, 7 * 24 * 3600));
  app.add_option("--kv-max-bytes", flags.bytes_max,
                 "Most bytes of session state; default: a quarter of the memory this process may "
                 "use")
      ->envname("MESHNET_KV_MAX_BYTES")
      ->capture_default_str()
      ->check(rpc::WholeNumber(1));
  app.add_option("--orphan-ttl-seconds", flags.orphan_ttl_seconds,
                 "Seconds that a session whose stream was lost waits for a retry")
      ->capture_default_str()
      ->check(CLI::Range(0, 3600));
  AddCheckpointFlags(app, flags.checkpoints);
  app.add_option("--compute-stall-seconds", flags.compute_stall_seconds,
                 "A frame that runs for longer makes health NOT_SERVING")
      ->capture_default_str()
      ->check(CLI::Range(1, 3600));
  app.add_option("--liveness-stall-seconds", flags.liveness_stall_seconds,
                 "A frame that runs for longer makes health NOT_SERVING for \"liveness\" too: the "
                 "process should be started anew")
      ->capture_default_str()
      ->check(CLI::Range(1, 3600));
}

// InvalidArgument: not two numbers with `separator` between them.
absl::StatusOr<std::pair<uint32_t, uint32_t>> ParsePair(const std::string& flag,
                                                        const std::string& text, char separator) {
  const std::vector<std::string> parts = absl::StrSplit(text, separator);
  uint32_t first = 0;
  uint32_t second = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &first) ||
      !absl::SimpleAtoi(parts[1], &second)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": \"", text, "\" is not NUMBER", std::string(1, separator), "NUMBER"));
  }
  return std::make_pair(first, second);
}

absl::StatusOr<LayerRange> LayersOf(const Flags& flags, uint32_t layer_count) {
  if (!flags.stage.empty()) {
    KVMESH_ASSIGN_OR_RETURN(const auto stage, ParsePair("--stage", flags.stage, '/'));
    return model::StageRange(stage.first, stage.second, layer_count);
  }
  if (flags.layers.empty()) return LayerRange{.begin = 0, .end = layer_count};
  KVMESH_ASSIGN_OR_RETURN(const auto layers, ParsePair("--layers", flags.layers, ':'));
  if (layers.first >= layers.second || layers.second > layer_count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--layers: ", flags.layers, " is not a range of the model's ", layer_count, " layers"));
  }
  return LayerRange{.begin = layers.first, .end = layers.second};
}

ShardServerOptions OptionsFrom(const Flags& flags) {
  ShardServerOptions options;
  options.server = rpc::ServerOptionsFrom(flags.service);
  options.peers = rpc::SplitNames(flags.peers);
  options.caching = !flags.no_kv_cache;
  options.sessions_max = flags.sessions_max;
  options.bytes_max = flags.bytes_max;
  options.ttl = absl::Seconds(flags.ttl_seconds);
  options.orphan_ttl = absl::Seconds(flags.orphan_ttl_seconds);
  options.compute_stall = absl::Seconds(flags.compute_stall_seconds);
  options.liveness_stall = absl::Seconds(flags.liveness_stall_seconds);
  Apply(flags.checkpoints, &options);
  options.threads = flags.threads == 0 ? UsableCpuCount() : flags.threads;
  return options;
}

absl::StatusOr<EngineOptions> EngineOptionsFrom(const Flags& flags, uint32_t threads) {
  EngineOptions options;
  options.threads = threads;
  options.numerics = flags.numerics;
  KVMESH_ASSIGN_OR_RETURN(options.kv_dtype, KvDtypeNamed(flags.kv_dtype));
  options.disable_kv_cache = flags.no_kv_cache;
  options.device = flags.device;
  options.weights_cache = flags.weights_cache;
  options.warn = [](const std::string& message) { LOG(WARNING) << message; };
  // A line now and then where packing takes long.
  options.on_layer_loaded = [](uint32_t done, uint32_t of) {
    LOG_EVERY_T(INFO, 5) << "weights of " << done << " of " << of << " layers are packed";
  };
  return options;
}

// Errors of Tokenizer::FromModel, where the tokens' bytes are `needed`.
absl::StatusOr<std::unique_ptr<TokenizerVocabulary>> LoadVocabulary(const Flags& flags,
                                                                    const model::Model& model,
                                                                    bool needed) {
  std::unique_ptr<const text::Tokenizer> tokenizer;
  if (needed) {
    KVMESH_ASSIGN_OR_RETURN(tokenizer, text::Tokenizer::FromModel(flags.model));
  }
  auto vocabulary =
      std::make_unique<TokenizerVocabulary>(tokenizer.get(), model.config().eos_token_ids);
  tokenizer.reset();
  malloc_trim(0);  // what the tokenizer took goes back to the system before weights are packed
  return vocabulary;
}

absl::StatusOr<std::unique_ptr<ShardServer>> StartServer(const Flags& flags,
                                                         const model::Model& model,
                                                         const Clock& clock) {
  KVMESH_ASSIGN_OR_RETURN(const LayerRange layers, LayersOf(flags, model.config().layer_count));
  const ShardServerOptions options = OptionsFrom(flags);
  KVMESH_ASSIGN_OR_RETURN(const model::ModelDigests digests, model.Digests(layers));
  const bool names_state = options.caching && options.checkpoints.enabled;
  KVMESH_ASSIGN_OR_RETURN(
      std::unique_ptr<TokenizerVocabulary> vocabulary,
      LoadVocabulary(flags, model, names_state || layers.end == model.config().layer_count));
  KVMESH_ASSIGN_OR_RETURN(const EngineOptions engine_options,
                          EngineOptionsFrom(flags, options.threads));
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                          MakeEngine(model, layers, engine_options));
  LOG(INFO) << "model " << flags.model << ", layers " << layers.begin << ":" << layers.end << " of "
            << model.config().layer_count << ", " << engine->info().quant << ", numerics "
            << engine->info().numerics_id << ", " << options.threads << " threads, at most "
            << options.sessions_max << " sessions and " << options.bytes_max << " bytes of state";
  return ShardServer::Start(options, clock, std::move(engine), std::move(vocabulary), digests);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "kvmesh-shard: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? rpc::kExitUsage : rpc::kExitFailed;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Executes layers of a language model and keeps the sessions' cache of those layers",
               "kvmesh-shard");
  AddFlags(app, flags);
  flags.service.role = rpc::Role::kShard;
  rpc::AddServiceFlags(app, flags.service);
  if (const auto code = rpc::ParseFlags(app, argc, argv, &flags.service); code.has_value()) {
    return *code;
  }
  rpc::InitService("kvmesh-shard", flags.service);
  const MonotonicClock clock;
  auto model = model::Model::Open(flags.model);
  if (!model.ok()) return Fail(model.status());
  auto shard = StartServer(flags, **model, clock);
  if (!shard.ok()) return Fail(shard.status());
  const absl::Status ready = rpc::WriteReadyFile(flags.service, (*shard)->server());
  if (!ready.ok()) return Fail(ready);
  LOG(INFO) << "serving on port " << (*shard)->port() << " as instance "
            << (*shard)->instance().ToHex();
  LOG(INFO) << "signal " << rpc::WaitForTermination() << ": draining";
  (*shard)->Drain();
  const absl::Duration grace = absl::Seconds(flags.service.drain_seconds);
  if (!(*shard)->WaitUntilQuiet(grace)) {
    LOG(WARNING) << "streams are still open after " << grace << "; they are cut";
  }
  (*shard)->Shutdown(absl::Seconds(1));
  LOG(INFO) << "bye";
  return rpc::kExitDone;
}

}  // namespace
}  // namespace kvmesh::shard

int main(int argc, char** argv) {
  return kvmesh::shard::Main(argc, argv);
}
