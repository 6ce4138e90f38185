// kvmesh-router: the clients' front door. Flags and wiring only.
#include <glog/logging.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/flags.h"
#include "common/rpc/process.h"
#include "services/router/grpc/router_server.h"

namespace kvmesh::router {
namespace {

struct Flags {
  rpc::ServiceFlags service;
  std::string model;
  std::string shards;
  uint32_t generations_max = 64;
  uint32_t queue_max = 256;
  int generation_seconds_max = 3600;
  int connection_age_seconds = 0;
  int resolve_ms = 2000;
  int heartbeat_ms = 2000;
  int step_watchdog_ms = 5000;
  std::string clients_file;
  double trace_sample_ratio = 0;
  std::string meta;
  CheckpointGates gates;
  int lookup_timeout_ms = 500;
  int reserve_timeout_ms = 1000;
  int session_resume_wait_ms = 500;
  int repair_wait_ms = 10000;
};

void AddCheckpointFlags(CLI::App& app, Flags& flags) {
  app.add_option("--meta", flags.meta,
                 "host:port of the arbiter; without it no checkpoint is read or saved");
  const auto add_gate = [&app](const char* name, uint32_t& gate, const char* what) {
    app.add_option(name, gate, what)->capture_default_str()->check(CLI::Range(0, 1 << 20));
  };
  add_gate("--min-tokens", flags.gates.min_tokens, "Shorter rows are not saved");
  add_gate("--cold-min-tokens", flags.gates.cold_min_tokens,
           "Prefills of fewer tokens are not saved");
  add_gate("--cold-max-tokens", flags.gates.cold_max_tokens,
           "Prompts of more tokens are saved up to there");
  add_gate("--continued-interval", flags.gates.continued_interval,
           "Generated tokens between two saves");
  add_gate("--boundary-trim-tokens", flags.gates.boundary_trim_tokens,
           "Tokens left off a prompt's end before its aligned boundary; of models whose state "
           "cannot be cut");
  add_gate("--boundary-align-tokens", flags.gates.boundary_align_tokens,
           "Rows also serve at multiples of so many tokens; the shards' must be the same");
  add_gate("--restore-min-tokens", flags.gates.restore_min_tokens,
           "Fewer stored tokens are not worth restoring");
  const auto add_wait = [&app](const char* name, int& wait, const char* what) {
    app.add_option(name, wait, what)->capture_default_str()->check(CLI::Range(1, 60000));
  };
  add_wait("--lookup-timeout-ms", flags.lookup_timeout_ms,
           "Milliseconds that a prompt waits for its stored state to be found, at most");
  add_wait("--reserve-timeout-ms", flags.reserve_timeout_ms,
           "Milliseconds that a save waits for the arbiter and for room");
  add_wait("--session-resume-wait-ms", flags.session_resume_wait_ms,
           "Milliseconds that a prompt waits for the save of its parent_key that is under way, "
           "and a repair for a fragment to appear");
  add_wait("--repair-wait-ms", flags.repair_wait_ms,
           "Milliseconds that a repair waits for a fragment that is being uploaded");
}

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--model", flags.model,
                 "Model whose tokenizer, chat template and configuration to use: a Hugging Face "
                 "directory or a .gguf file; weights are not read")
      ->required();
  app.add_option("--shards", flags.shards,
                 "Shards to use: host:port, separated by commas; a name may stand for several "
                 "addresses and is looked up again and again")
      ->required();
  app.add_option("--clients-file", flags.clients_file,
                 "File of tenants, the hashes of their tokens and their limits (docs/security.md); "
                 "read again when it changes. Without one, whoever reaches this router may use it")
      ->check(CLI::ExistingFile);
  app.add_option("--trace-sample-ratio", flags.trace_sample_ratio,
                 "Share of calls without a traceparent whose spans are logged (docs/tracing.md); "
                 "calls with one say so themselves")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--generations-max", flags.generations_max,
                 "Generations that run at the same time; more are queued")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--queue-max", flags.queue_max,
                 "Generations that may wait for a place; more are refused")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--generation-seconds-max", flags.generation_seconds_max,
                 "Longest time of one generation; also the deadline of calls without one")
      ->capture_default_str()
      ->check(CLI::Range(1, 7 * 24 * 3600));
  app.add_option(
         "--connection-age-seconds", flags.connection_age_seconds,
         "Seconds after which a client's connection is closed softly, so that its next call "
         "may reach another router behind the same name; running calls go on. 0: never")
      ->capture_default_str()
      ->check(CLI::Range(0, 24 * 3600));
  app.add_option("--resolve-ms", flags.resolve_ms,
                 "Milliseconds between two look-ups of the names of --shards")
      ->capture_default_str()
      ->check(CLI::Range(100, 600000));
  app.add_option("--heartbeat-ms", flags.heartbeat_ms,
                 "Milliseconds between the heartbeats asked of shards; three missing ones mean "
                 "that a shard is gone")
      ->capture_default_str()
      ->check(CLI::Range(100, 60000));
  app.add_option("--step-watchdog-ms", flags.step_watchdog_ms,
                 "Milliseconds without an answer, and at least 20 times the usual step, after "
                 "which every shard of a route is asked whether it lives")
      ->capture_default_str()
      ->check(CLI::Range(100, 600000));
}

absl::Status SetCheckpointOptions(const Flags& flags, RouterOptions& options) {
  if (!flags.meta.empty()) {
    if (absl::Status status = rpc::CheckAddress(flags.meta); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--meta: ", status.message()));
    }
  }
  if (absl::Status status = CheckGates(flags.gates); !status.ok()) return status;
  options.meta_address = flags.meta;
  options.checkpoints.gates = flags.gates;
  options.checkpoints.lookup_wait = absl::Milliseconds(flags.lookup_timeout_ms);
  options.checkpoints.reserve_wait = absl::Milliseconds(flags.reserve_timeout_ms);
  options.checkpoints.session_resume_wait = absl::Milliseconds(flags.session_resume_wait_ms);
  options.checkpoints.repair_wait = absl::Milliseconds(flags.repair_wait_ms);
  return absl::OkStatus();
}

absl::StatusOr<RouterOptions> OptionsFrom(const Flags& flags) {
  RouterOptions options;
  options.server = rpc::ServerOptionsFrom(flags.service);
  for (std::string& name : rpc::SplitNames(flags.shards)) {
    if (absl::Status status = rpc::CheckAddress(name); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--shards: ", status.message()));
    }
    options.discovery.names.push_back(std::move(name));
  }
  if (options.discovery.names.empty()) return absl::InvalidArgumentError("--shards names no shard");
  options.discovery.resolve_interval = absl::Milliseconds(flags.resolve_ms);
  options.discovery.heartbeat = absl::Milliseconds(flags.heartbeat_ms);
  options.registry.generations_max = flags.generations_max;
  options.registry.queue_max = flags.queue_max;
  options.registry.limits.step_watchdog_min = absl::Milliseconds(flags.step_watchdog_ms);
  options.clients_file = flags.clients_file;
  options.trace_sample_ratio = flags.trace_sample_ratio;
  options.generation_time_max = absl::Seconds(flags.generation_seconds_max);
  if (flags.connection_age_seconds > 0) {
    options.server.connection_age = absl::Seconds(flags.connection_age_seconds);
  }
  if (absl::Status status = SetCheckpointOptions(flags, options); !status.ok()) return status;
  return options;
}

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "kvmesh-router: %s\n", std::string(status.message()).c_str());
  return code;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app{
      "The front door of a kvmesh: takes prompts and chats, finds a route over the "
      "shards, streams the answers.",
      "kvmesh-router"};
  AddFlags(app, flags);
  AddCheckpointFlags(app, flags);
  flags.service.role = rpc::Role::kRouter;
  rpc::AddServiceFlags(app, flags.service);
  if (const std::optional<int> code = rpc::ParseFlags(app, argc, argv, &flags.service)) {
    return *code;
  }
  rpc::InitService(argv[0], flags.service);

  const absl::StatusOr<RouterOptions> options = OptionsFrom(flags);
  if (!options.ok()) return Fail(options.status(), rpc::kExitUsage);
  absl::StatusOr<RouterModel> model = LoadRouterModel(flags.model);
  if (!model.ok()) return Fail(model.status(), rpc::kExitFailed);
  const MonotonicClock clock;
  absl::StatusOr<std::unique_ptr<RouterServer>> router =
      RouterServer::Start(*options, *std::move(model), clock);
  if (!router.ok()) return Fail(router.status(), rpc::kExitFailed);
  const absl::Status ready = rpc::WriteReadyFile(flags.service, (*router)->server());
  if (!ready.ok()) return Fail(ready, rpc::kExitFailed);
  LOG(INFO) << "listening on port " << (*router)->port();

  rpc::WaitForTermination();
  LOG(INFO) << "draining";
  (*router)->Drain(absl::Seconds(flags.service.drain_seconds));
  return rpc::kExitDone;
}

}  // namespace
}  // namespace kvmesh::router

int main(int argc, char** argv) {
  return kvmesh::router::Main(argc, argv);
}
