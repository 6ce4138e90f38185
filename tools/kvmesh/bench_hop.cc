// `bench hop`: what a hop costs. Two meshes of the same model side by side, one with two shards,
// one with a single shard that runs all layers; runs alternate, so that noise hits both. Also the
// memory of every shard.
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "tools/kvmesh/bench_util.h"
#include "tools/kvmesh/idle_model.h"

namespace kvmesh::cli {
namespace {

struct HopFlags {
  std::string model;
  int shards = 2;
  int threads = 0;
  uint32_t tokens = 128;
  int rounds = 6;
};

absl::StatusOr<v1::DescribeResponse> DescribeShard(const std::string& address) {
  auto stub = v1::ShardService::NewStub(rpc::MakeChannel(address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::DescribeResponse response;
  const grpc::Status status = stub->Describe(&context, {}, &response);
  if (!status.ok()) return rpc::FromGrpc(status);
  return response;
}

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

absl::StatusOr<Json> Hop(const HopFlags& flags, Interrupt& interrupt) {
  KVMESH_ASSIGN_OR_RETURN(const double idle_bytes, IdleBytes(interrupt));
  BenchTarget target{.model = flags.model, .shards = flags.shards, .threads = flags.threads};
  KVMESH_ASSIGN_OR_RETURN(BenchMesh split, BenchMesh::Open(target, interrupt));
  target.shards = 1;
  KVMESH_ASSIGN_OR_RETURN(BenchMesh whole, BenchMesh::Open(target, interrupt));
  KVMESH_ASSIGN_OR_RETURN(const Json memory, Memory({split.local(), whole.local()}, idle_bytes));
  KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt, PromptIds(split.router(), 32));

  std::vector<double> split_figures;
  std::vector<double> whole_figures;
  // A warm-up round first; then the order alternates.
  for (int round = 0; round <= flags.rounds; ++round) {
    for (const bool second : {false, true}) {
      const bool run_split = (round % 2 == 0) != second;
      KVMESH_ASSIGN_OR_RETURN(const GenerationResult result,
                              RunPrompt(run_split ? split.router() : whole.router(), prompt,
                                        flags.tokens, v1::CACHE_USE_OFF, interrupt));
      const double figure = result.finished.timings().tokens_per_second();
      if (round > 0) (run_split ? split_figures : whole_figures).push_back(figure);
      Progress(absl::StrCat(run_split ? "mesh:        " : "one process: ", figure, " tokens/s"));
    }
  }
  return Json{{"ratio", Median(split_figures) / Median(whole_figures)},
              {"tokens_per_second_of_mesh", Median(split_figures)},
              {"tokens_per_second_of_one_process", Median(whole_figures)},
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
  command->add_option("--rounds", flags->rounds, "Repetitions; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->callback([=] {
    *chosen = [flags](Context& context) {
      const absl::StatusOr<Json> figures = Hop(*flags, *context.interrupt);
      if (!figures.ok())
        return Report(figures.status(), context.json, context.interrupt->requested());
      return PrintFigures(*figures, context);
    };
  });
}

}  // namespace kvmesh::cli
