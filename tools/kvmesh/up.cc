// `up` and `down`: a mesh on this machine.
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tools/kvmesh/command.h"
#include "tools/kvmesh/dial.h"
#include "tools/kvmesh/local_mesh.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {
namespace {

constexpr absl::Duration kDrainGrace = absl::Seconds(35);

void PrintMesh(const MeshFile& mesh, bool json) {
  if (json) {
    PrintJson(ToJson(mesh));
    return;
  }
  std::printf("%-14s %s\n", "router", mesh.router.c_str());
  for (const ServiceEntry& service : mesh.services) {
    if (service.name == "router") continue;
    const std::string layers =
        service.layers.empty() ? "" : absl::StrCat("  layers ", service.layers);
    std::printf("%-14s %s%s  pid %d\n", service.name.c_str(), service.address.c_str(),
                layers.c_str(), static_cast<int>(service.pid));
  }
  std::fflush(stdout);
}

// Until Ctrl-C, or until every process has ended. A process that ends is told; the others go on.
int Supervise(LocalMesh& mesh, Interrupt& interrupt) {
  std::vector<bool> told(mesh.children().size(), false);
  while (!interrupt.WaitFor(absl::Milliseconds(200))) {
    size_t running = 0;
    bool all_ended_well = true;
    for (size_t i = 0; i < mesh.children().size(); ++i) {
      Child& child = mesh.children()[i];
      if (child.Running()) {
        ++running;
        continue;
      }
      all_ended_well &= child.ended_well();
      if (!told[i] && !child.ended_well()) std::fprintf(stderr, "%s\n", child.HowItEnded().c_str());
      told[i] = true;
    }
    if (running == 0) {
      mesh.Stop(absl::ZeroDuration());
      return all_ended_well ? kDone : kFailed;
    }
  }
  Progress("draining");
  if (!mesh.Stop(kDrainGrace))
    std::fprintf(stderr, "a service did not end in time and was killed\n");
  return kInterrupted;
}

int Up(Context& context, MeshOptions options) {
  // Services are started with these paths; mesh.json is read by commands that run elsewhere.
  options.model = std::filesystem::absolute(options.model).string();
  options.data_dir = std::filesystem::absolute(options.data_dir).lexically_normal().string();
  if (!options.certificates.empty()) {
    options.certificates = std::filesystem::absolute(options.certificates).string();
    const absl::Status used = UseCredentials({.tls_folder = options.certificates + "/operator"});
    if (!used.ok()) return Report(used, context.json, false);
  }
  if (!options.clients_file.empty()) {
    options.clients_file = std::filesystem::absolute(options.clients_file).string();
  }
  Progress(absl::StrCat("starting ", options.shards * options.replicas, " shards and a router",
                        options.tiers.empty() ? "" : ", the arbiter and its tiers"));
  absl::StatusOr<std::unique_ptr<LocalMesh>> mesh = LocalMesh::Start(options, *context.interrupt);
  if (!mesh.ok()) return Report(mesh.status(), context.json, context.interrupt->requested());
  PrintMesh((*mesh)->file(), context.json);
  if (options.detached) return kDone;
  Progress(
      absl::StrCat("try: kvmesh chat --router ", (*mesh)->router(), "   (Ctrl-C stops the mesh)"));
  return Supervise(**mesh, *context.interrupt);
}

// A process that has ended may hold the folder a little longer, while the kernel takes its memory
// apart; the next `up` would be refused.
void AwaitUnlocked(const std::string& data_dir) {
  const absl::Time until = absl::Now() + absl::Seconds(5);
  while (absl::IsFailedPrecondition(MeshLock::Take(data_dir).status()) && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(20));
  }
}

int Down(Context& context, const std::string& data_dir, int grace_seconds) {
  absl::StatusOr<MeshFile> mesh = ReadMesh(data_dir);
  if (!mesh.ok()) return Report(mesh.status(), context.json, false);
  std::map<std::string, std::vector<pid_t>> by_program;
  Json names = Json::array();
  for (const ServiceEntry& service : mesh->services) {
    const std::string program = ProgramOf(service.name);
    by_program[program].push_back(service.pid);
    if (RunsProgram(service.pid, program)) names.push_back(service.name);
  }
  Progress("draining");
  // Generations that run then end before their shards leave, and what those save finds its store.
  const absl::Duration grace = absl::Seconds(grace_seconds);
  bool clean = true;
  for (const char* program : {"kvmesh-router", "kvmesh-shard", "kvmesh-blob", "kvmesh-meta"}) {
    clean = StopProcesses(by_program[program], program, grace) && clean;
  }
  AwaitUnlocked(data_dir);
  RemoveMesh(data_dir);
  if (context.json) PrintJson({{"stopped", names}, {"killed", !clean}});
  if (!clean) std::fprintf(stderr, "a service did not end in time and was killed\n");
  return kDone;
}

}  // namespace

void AddUp(CLI::App& app, Action* chosen) {
  auto options = std::make_shared<MeshOptions>();
  options->data_dir = "kvmesh-data";
  auto wait_seconds = std::make_shared<int>(300);
  CLI::App* up =
      app.add_subcommand("up", "Start a mesh on this machine; Ctrl-C drains and stops it");
  up->add_option("--model", options->model, "A .gguf file or a Hugging Face directory")->required();
  up->add_option("--shards", options->shards, "Stages that the layers are split into")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  up->add_option("--replicas", options->replicas, "Shard processes per stage")
      ->capture_default_str()
      ->check(CLI::Range(1, 16));
  up->add_option("--data-dir", options->data_dir,
                 "Folder for mesh.json, logs and stored state; one mesh per folder. Started again "
                 "on the same one, a mesh finds what it had stored")
      ->capture_default_str();
  options->tiers = {"ram", "ram_file", "disk"};
  CLI::Option* tiers = up->add_option("--tiers", options->tiers,
                                      "Where stored state may lie: some of ram, ram_file, disk")
                           ->capture_default_str()
                           ->delimiter(',');
  up->add_option("--tier-policy", options->tier_policy,
                 "REASON=TIER[,TIER...]: where saves of this reason go, the first tier with room; "
                 "reasons are cold, continued, finish, evict, shutdown; may be repeated. Reasons "
                 "that are not named keep to their usual tiers, or to --tiers if those are missing")
      ->allow_extra_args(false);
  up->add_option("--router-flag", options->router_flags,
                 "A further flag of the router, --router-flag=--min-tokens=256; may be repeated")
      ->allow_extra_args(false);
  up->add_option("--shard-flag", options->shard_flags,
                 "A further flag of every shard; may be repeated")
      ->allow_extra_args(false);
  auto no_checkpoints = std::make_shared<bool>(false);
  up->add_flag("--no-checkpoints", *no_checkpoints, "Neither save nor restore state")
      ->excludes(tiers);
  up->add_option("--threads", options->threads,
                 "Compute threads of each shard; 0: as many as there are processors")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  up->add_option("--certificates", options->certificates,
                 "Folder with a folder of certificates for each role, as tools/dev-certs makes it: "
                 "the services speak TLS")
      ->check(CLI::ExistingDirectory);
  up->add_option("--clients-file", options->clients_file,
                 "Tenants and the hashes of their tokens, for the router")
      ->check(CLI::ExistingFile);
  up->add_flag("--detach", options->detached, "Return once the mesh answers, and leave it running");
  up->add_option("--wait-seconds", *wait_seconds, "How long the mesh may take until it answers")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  up->callback([=] {
    options->start_timeout = absl::Seconds(*wait_seconds);
    if (*no_checkpoints) options->tiers.clear();
    *chosen = [options](Context& context) { return Up(context, *options); };
  });
}

void AddDown(CLI::App& app, Action* chosen) {
  auto data_dir = std::make_shared<std::string>("kvmesh-data");
  auto grace_seconds = std::make_shared<int>(35);
  CLI::App* down = app.add_subcommand("down", "Drain and stop the mesh of a data directory");
  down->add_option("--data-dir", *data_dir, "The folder given to up")->capture_default_str();
  down->add_option("--grace-seconds", *grace_seconds, "After that, services are killed")
      ->capture_default_str()
      ->check(CLI::Range(0, 3600));
  down->callback([=] {
    *chosen = [=](Context& context) { return Down(context, *data_dir, *grace_seconds); };
  });
}

}  // namespace kvmesh::cli
