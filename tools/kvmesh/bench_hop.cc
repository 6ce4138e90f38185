// `bench hop`: what a hop costs. Two meshes of the same model side by side, one with two shards,
// one with a single shard that runs all layers; runs alternate, so that noise hits both. Also where
// the time of a token goes, and the memory of every shard.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tools/kvmesh/bench_util.h"
#include "tools/kvmesh/idle_model.h"
#include "tools/kvmesh/metrics_page.h"

namespace kvmesh::cli {
namespace {

struct HopFlags {
  std::string model;
  int shards = 2;
  int threads = 0;
  uint32_t tokens = 128;
  int rounds = 6;
};

absl::StatusOr<uint64_t> ShardResident(const LocalMesh& mesh, const std::string& name) {
  for (const ServiceEntry& service : mesh.file().services) {
    if (service.name == name) return ResidentBytes(service.pid);
  }
  return absl::NotFoundError(absl::StrCat("no ", name));
}

absl::StatusOr<std::string> AddressOf(const LocalMesh& mesh, const std::string& name) {
  for (const ServiceEntry& service : mesh.file().services) {
    if (service.name == name) return service.address;
  }
  return absl::NotFoundError(absl::StrCat("no ", name));
}

// What a shard takes beside its weights: the resident memory of one that serves a model of hardly
// any, without these.
absl::StatusOr<double> IdleBytes(Interrupt& interrupt) {
  TempFolder folder;
  KVMESH_RETURN_IF_ERROR(WriteIdleModel(folder.path() + "/model"));
  BenchTarget target{.model = folder.path() + "/model", .shards = 1, .threads = 1};
  KVMESH_ASSIGN_OR_RETURN(BenchMesh mesh, BenchMesh::Open(target, interrupt));
  const std::string name = "shard-0";
  KVMESH_ASSIGN_OR_RETURN(const uint64_t resident, ShardResident(*mesh.local(), name));
  KVMESH_ASSIGN_OR_RETURN(const std::string address, AddressOf(*mesh.local(), name));
  KVMESH_ASSIGN_OR_RETURN(const v1::DescribeResponse shard, DescribeShard(address));
  return static_cast<double>(resident) - static_cast<double>(shard.weight_bytes_held());
}

// Of every shard: weights held against weights owned, and resident memory above an idle shard's
// against weights owned.
absl::StatusOr<Json> Memory(const std::vector<LocalMesh*>& meshes, double idle_bytes) {
  Json rows = Json::array();
  for (const LocalMesh* mesh : meshes) {
    for (const ServiceEntry& service : mesh->file().services) {
      if (service.name == "router") continue;
      KVMESH_ASSIGN_OR_RETURN(const v1::DescribeResponse shard, DescribeShard(service.address));
      KVMESH_ASSIGN_OR_RETURN(const uint64_t resident, ShardResident(*mesh, service.name));
      const auto owned = static_cast<double>(std::max<uint64_t>(1, shard.weight_bytes()));
      rows.push_back(
          {{"layers", service.layers},
           {"weight_bytes", shard.weight_bytes()},
           {"weight_bytes_held", shard.weight_bytes_held()},
           {"held_over_owned", static_cast<double>(shard.weight_bytes_held()) / owned},
           {"resident_bytes", resident},
           {"above_idle_over_owned", (static_cast<double>(resident) - idle_bytes) / owned}});
    }
  }
  return Json{{"idle_bytes", idle_bytes}, {"shards", rows}};
}

// What the shards of a mesh have counted since their start.
struct Counters {
  double steps = 0;            // decode steps of each shard
  double compute_seconds = 0;  // of all shards, in decode steps
  double wait_seconds = 0;     // of all frames, in the shards' queues
};

absl::StatusOr<Counters> ReadCounters(const LocalMesh& mesh, int shards) {
  Counters sum;
  for (const ServiceEntry& service : mesh.file().services) {
    if (service.name == "router") continue;
    KVMESH_ASSIGN_OR_RETURN(const std::string page, FetchMetrics(service.metrics));
    sum.steps += MetricOn(page, "kvmesh_shard_compute_seconds_count{phase=\"decode\"}") / shards;
    sum.compute_seconds += MetricOn(page, "kvmesh_shard_compute_seconds_sum{phase=\"decode\"}");
    sum.wait_seconds += MetricOn(page, "kvmesh_shard_wait_seconds_sum");
  }
  return sum;
}

// One of the two meshes that are compared.
class Side {
 public:
  static absl::StatusOr<Side> Open(const HopFlags& flags, int shards, Interrupt& interrupt) {
    Side side;
    side.shards_ = shards;
    KVMESH_ASSIGN_OR_RETURN(
        side.mesh_,
        BenchMesh::Open({.model = flags.model, .shards = shards, .threads = flags.threads},
                        interrupt));
    return side;
  }

  BenchMesh& mesh() { return mesh_; }
  double tokens_per_second() const { return Median(figures_); }

  // An answer that does not count; what is measured begins after it.
  absl::Status WarmUp(const std::vector<uint32_t>& prompt, const HopFlags& flags,
                      Interrupt& interrupt) {
    KVMESH_RETURN_IF_ERROR(Run(prompt, flags, interrupt));
    figures_.clear();
    KVMESH_ASSIGN_OR_RETURN(start_, ReadCounters(*mesh_.local(), shards_));
    return absl::OkStatus();
  }
  absl::Status Run(const std::vector<uint32_t>& prompt, const HopFlags& flags,
                   Interrupt& interrupt) {
    KVMESH_ASSIGN_OR_RETURN(
        const GenerationResult result,
        RunPrompt(mesh_.router(), prompt, flags.tokens, v1::CACHE_USE_OFF, interrupt));
    figures_.push_back(result.finished.timings().tokens_per_second());
    Progress(absl::StrCat(shards_, shards_ == 1 ? " shard:  " : " shards: ", figures_.back(),
                          " tokens/s"));
    return absl::OkStatus();
  }

  // Milliseconds a token: all of them; what the engines took; what frames waited for their turn;
  // and the rest, which is messages, wake-ups and the router.
  absl::StatusOr<Json> PerToken() const {
    KVMESH_ASSIGN_OR_RETURN(const Counters end, ReadCounters(*mesh_.local(), shards_));
    const double steps = std::max(1.0, end.steps - start_.steps);
    // The mean, as what it is split into.
    double total = 0;
    for (const double figure : figures_) {
      total += 1000 / figure / static_cast<double>(figures_.size());
    }
    const double compute = 1000 * (end.compute_seconds - start_.compute_seconds) / steps;
    const double wait = 1000 * (end.wait_seconds - start_.wait_seconds) / steps;
    return Json{
        {"total", total}, {"compute", compute}, {"wait", wait}, {"wire", total - compute - wait}};
  }

 private:
  BenchMesh mesh_;
  int shards_ = 0;
  Counters start_;
  std::vector<double> figures_;  // tokens per second
};

absl::StatusOr<Json> Hop(const HopFlags& flags, Interrupt& interrupt) {
  KVMESH_ASSIGN_OR_RETURN(const double idle_bytes, IdleBytes(interrupt));
  KVMESH_ASSIGN_OR_RETURN(Side split, Side::Open(flags, flags.shards, interrupt));
  KVMESH_ASSIGN_OR_RETURN(Side whole, Side::Open(flags, 1, interrupt));
  KVMESH_ASSIGN_OR_RETURN(const Json memory,
                          Memory({split.mesh().local(), whole.mesh().local()}, idle_bytes));
  KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt, PromptIds(split.mesh().router(), 32));
  KVMESH_RETURN_IF_ERROR(split.WarmUp(prompt, flags, interrupt));
  KVMESH_RETURN_IF_ERROR(whole.WarmUp(prompt, flags, interrupt));
  // The order alternates, so that whatever else the machine does hits both.
  for (int round = 0; round < flags.rounds; ++round) {
    KVMESH_RETURN_IF_ERROR((round % 2 == 0 ? split : whole).Run(prompt, flags, interrupt));
    KVMESH_RETURN_IF_ERROR((round % 2 == 0 ? whole : split).Run(prompt, flags, interrupt));
  }
  KVMESH_ASSIGN_OR_RETURN(const Json of_mesh, split.PerToken());
  KVMESH_ASSIGN_OR_RETURN(const Json of_one, whole.PerToken());
  return Json{{"ratio", split.tokens_per_second() / whole.tokens_per_second()},
              {"tokens_per_second_of_mesh", split.tokens_per_second()},
              {"tokens_per_second_of_one_process", whole.tokens_per_second()},
              {"ms_per_token_of_mesh", of_mesh},
              {"ms_per_token_of_one_process", of_one},
              {"shards", flags.shards},
              {"tokens", flags.tokens},
              {"rounds", flags.rounds},
              {"memory", memory}};
}

}  // namespace

void AddBenchHop(CLI::App& bench, Action* chosen) {
  auto flags = std::make_shared<HopFlags>();
  CLI::App* command = bench.add_subcommand(
      "hop", "A mesh against one process with all layers; memory of the shards");
  command->add_option("--model", flags->model, "A .gguf file or a Hugging Face directory")
      ->required();
  command->add_option("--shards", flags->shards, "Shards of the mesh")
      ->capture_default_str()
      ->check(CLI::Range(2, 64));
  command->add_option("--threads", flags->threads, "Compute threads of every shard; 0: its default")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command->add_option("--tokens", flags->tokens, "Tokens of each answer")
      ->capture_default_str()
      ->check(CLI::Range(2U, 100000U));
  AddRounds(*command, flags->rounds);
  command->callback([=] {
    *chosen = [flags](Context& context) {
      return FinishBench(Hop(*flags, *context.interrupt), context);
    };
  });
}

}  // namespace kvmesh::cli
