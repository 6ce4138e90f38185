#include "tools/kvmesh/bench_util.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/rpc/flags.h"
#include "common/rpc/status_bridge.h"
#include "tools/kvmesh/dial.h"

namespace kvmesh::cli {
namespace {

constexpr absl::Duration kRunTimeout = absl::Minutes(30);
constexpr absl::string_view kText =
    "The history of measurement begins with parts of the human body. A cubit was the length of a "
    "forearm, a foot was "
    "a foot, and a pace was two steps. Traders in different towns soon found that no two feet are "
    "alike, and agreed on "
    "rods of wood and later of metal, kept in temples and town halls where anyone could compare. ";

std::string CommandLine() {
  std::ifstream in("/proc/self/cmdline");
  std::string command((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::replace(command.begin(), command.end(), '\0', ' ');
  return std::string(absl::StripSuffix(command, " "));
}

std::string Machine() {
  std::ifstream in("/proc/cpuinfo");
  std::string name = "unknown processor";
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    name = line.substr(line.find(':') + 2);
    break;
  }
  return absl::StrCat(name, ", ", std::thread::hardware_concurrency(), " cores");
}

// Of the checkout that the program was built in; "unknown" elsewhere.
std::string Commit() {
  const std::string command =
      absl::StrCat("git -C '", ProgramFolder(), "' describe --always --dirty 2>/dev/null");
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "unknown";
  const auto close = absl::MakeCleanup([pipe] { pclose(pipe); });
  char line[128] = {};
  if (std::fgets(line, sizeof(line), pipe) == nullptr) return "unknown";
  return std::string(absl::StripSuffix(line, "\n"));
}

void AddThreads(CLI::App& command, BenchTarget& target) {
  command
      .add_option("--threads", target.threads,
                  "Compute threads with --model; 0: as many as there are processors")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
}

// A line a figure; those of an object inside stand under its name and a dot.
void PrintLines(const std::string& prefix, const Json& figures) {
  for (const auto& [key, value] : figures.items()) {
    const std::string name = prefix + key;
    if (value.is_object()) {
      PrintLines(name + ".", value);
      continue;
    }
    const std::string text = value.is_string() ? value.get<std::string>()
                             : value.is_number_float()
                                 ? absl::StrFormat("%.4g", value.get<double>())
                                 : value.dump();
    std::printf("%-28s %s\n", name.c_str(), text.c_str());
  }
}

}  // namespace

TempFolder::TempFolder()
    : path_((std::filesystem::temp_directory_path() /
             absl::StrCat("kvmesh-bench-", RandomId<InstanceId>().ToHex().substr(0, 12)))
                .string()) {}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void AddTargetFlags(CLI::App& command, BenchTarget& target) {
  CLI::Option_group* where = command.add_option_group("where", "What to measure");
  where->add_option("--router", target.router, "A running mesh: its router")->check(rpc::Address());
  where->add_option("--model", target.model, "Start a mesh for this model, and stop it afterwards");
  where->require_option(1);
  command.add_option("--shards", target.shards, "Stages of the benchmark's own mesh")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  AddThreads(command, target);
}

void AddEngineTargetFlags(CLI::App& command, BenchTarget& target) {
  CLI::Option_group* where = command.add_option_group("where", "What to measure");
  where->add_option("--router", target.router, "A running mesh: its router")->check(rpc::Address());
  where->add_option("--model", target.model, "One engine that runs all layers of this model");
  where->require_option(1);
  AddThreads(command, target);
}

absl::StatusOr<BenchMesh> BenchMesh::Open(const BenchTarget& target, Interrupt& interrupt) {
  BenchMesh mesh;
  std::string address = target.router;
  if (address.empty()) {
    Progress(absl::StrCat("starting a mesh of ", target.shards, " shards"));
    mesh.folder_ = std::make_shared<TempFolder>();
    KVMESH_ASSIGN_OR_RETURN(
        mesh.local_, LocalMesh::Start({.model = std::filesystem::absolute(target.model).string(),
                                       .data_dir = mesh.folder_->path(),
                                       .shards = target.shards,
                                       .threads = target.threads,
                                       .tiers = target.tiers},
                                      interrupt));
    address = mesh.local_->router();
  }
  mesh.router_ = v1::RouterService::NewStub(Dial(address, rpc::Role::kRouter));
  return mesh;
}

absl::StatusOr<std::vector<uint32_t>> PromptIds(v1::RouterService::Stub& router, uint32_t count,
                                                const std::string& beginning) {
  v1::TokenizeRequest request;
  request.set_text(beginning);
  // A token is at least a byte of text, and English text has fewer than eight a token.
  while (request.text().size() < static_cast<size_t>(count) * 8) {
    request.mutable_text()->append(kText.data(), kText.size());
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::TokenizeResponse response;
  const grpc::Status status = router.Tokenize(&context, request, &response);
  if (!status.ok()) return rpc::FromGrpc(status);
  if (response.ids_size() < static_cast<int>(count)) {
    return absl::InternalError(absl::StrCat("the tokenizer made only ", response.ids_size(),
                                            " ids of the text, not ", count));
  }
  return std::vector<uint32_t>(response.ids().begin(), response.ids().begin() + count);
}

v1::GenerateRequest PromptRequest(const std::vector<uint32_t>& prompt, uint32_t max_tokens,
                                  v1::CacheUse cache) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  v1::GenerationOptions& options = *request.mutable_options();
  options.set_max_tokens(max_tokens);
  options.set_ignore_eos(true);
  options.set_cache(cache);
  return request;
}

absl::StatusOr<GenerationResult> RunRequest(v1::RouterService::Stub& router,
                                            const v1::GenerateRequest& request,
                                            Interrupt& interrupt) {
  GenerationResult result;
  KVMESH_RETURN_IF_ERROR(RunGenerate(
      router, request, kRunTimeout, interrupt, [](absl::string_view) {}, &result));
  return result;
}

absl::StatusOr<GenerationResult> RunPrompt(v1::RouterService::Stub& router,
                                           const std::vector<uint32_t>& prompt, uint32_t max_tokens,
                                           v1::CacheUse cache, Interrupt& interrupt) {
  return RunRequest(router, PromptRequest(prompt, max_tokens, cache), interrupt);
}

absl::StatusOr<v1::DescribeResponse> DescribeShard(const std::string& address) {
  auto stub = v1::ShardService::NewStub(Dial(address, rpc::Role::kShard));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::DescribeResponse response;
  const grpc::Status status = stub->Describe(&context, {}, &response);
  if (!status.ok()) return rpc::FromGrpc(status);
  return response;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(middle), values.end());
  return values[middle];
}

void AddRounds(CLI::App& command, int& rounds) {
  command.add_option("--rounds", rounds, "Repetitions; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
}

int FinishBench(const absl::StatusOr<Json>& figures, Context& context) {
  if (!figures.ok()) {
    const bool interrupted = context.interrupt != nullptr && context.interrupt->requested();
    return Report(figures.status(), context.json, interrupted);
  }
  Json all = *figures;
  all["command"] = CommandLine();
  all["machine"] = Machine();
  all["commit"] = Commit();
  if (context.json) {
    PrintJson(all);
  } else {
    PrintLines("", all);
  }
  return kDone;
}

void AddBench(CLI::App& app, Action* chosen) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure; each prints its command, machine and commit");
  bench->require_subcommand(1);
  bench->fallthrough();
  AddBenchFlat(*bench, chosen);
  AddBenchHop(*bench, chosen);
  AddBenchDecode(*bench, chosen);
  AddBenchPrefill(*bench, chosen);
  AddBenchConcurrent(*bench, chosen);
  AddBenchLookup(*bench, chosen);
  AddBenchPump(*bench, chosen);
  AddBenchWarm(*bench, chosen);
}

}  // namespace kvmesh::cli
