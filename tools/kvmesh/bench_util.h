// What all benchmarks share: where they measure, what they measure, how they print it.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "tools/kvmesh/command.h"
#include "tools/kvmesh/generation.h"
#include "tools/kvmesh/local_mesh.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {

// A mesh to measure: a running one, or one of the benchmark's own.
struct BenchTarget {
  std::string router;  // empty: start a mesh for `model`
  std::string model;
  int shards = 2;
  int threads = 0;
  std::vector<std::string> tiers;  // of the benchmark's own mesh; none: no checkpoints
};

// --router or --model (one of them), --shards and --threads for the latter.
void AddTargetFlags(CLI::App& command, BenchTarget& target);

// --router, or --model for the engine alone, with --threads for the latter.
void AddEngineTargetFlags(CLI::App& command, BenchTarget& target);

// The name of a folder that is nobody else's, among the temporary ones; removed at the end with all
// that lies in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The router to measure, and the mesh that lives as long as this object when it is the benchmark's
// own.
class BenchMesh {
 public:
  static absl::StatusOr<BenchMesh> Open(const BenchTarget& target, Interrupt& interrupt);
  v1::RouterService::Stub& router() { return *router_; }
  LocalMesh* local() const { return local_.get(); }

 private:
  // Outlives the mesh in it; shared only so that BenchMesh can move.
  std::shared_ptr<TempFolder> folder_;
  std::unique_ptr<LocalMesh> local_;
  std::unique_ptr<v1::RouterService::Stub> router_;
};

// `count` ids of ordinary text behind `beginning`.
absl::StatusOr<std::vector<uint32_t>> PromptIds(v1::RouterService::Stub& router, uint32_t count,
                                                const std::string& beginning = "");

// A greedy generation past any end of sequence, of exactly `max_tokens`.
v1::GenerateRequest PromptRequest(const std::vector<uint32_t>& prompt, uint32_t max_tokens,
                                  v1::CacheUse cache);
// The statuses of RunGenerate.
absl::StatusOr<GenerationResult> RunRequest(v1::RouterService::Stub& router,
                                            const v1::GenerateRequest& request,
                                            Interrupt& interrupt);
// Both: greedy, past any end of sequence, exactly `max_tokens` long.
absl::StatusOr<GenerationResult> RunPrompt(v1::RouterService::Stub& router,
                                           const std::vector<uint32_t>& prompt, uint32_t max_tokens,
                                           v1::CacheUse cache, Interrupt& interrupt);

// What a shard says of itself.
absl::StatusOr<v1::DescribeResponse> DescribeShard(const std::string& address);

// 0 for none.
double Median(std::vector<double> values);

// --rounds, as many repetitions as `rounds` says unless told otherwise.
void AddRounds(CLI::App& command, int& rounds);

// Prints `figures` with command, machine and commit, one object or a line each; or reports why
// there are none. Returns the exit code.
int FinishBench(const absl::StatusOr<Json>& figures, Context& context);

void AddBenchFlat(CLI::App& bench, Action* chosen);
void AddBenchHop(CLI::App& bench, Action* chosen);
void AddBenchDecode(CLI::App& bench, Action* chosen);
void AddBenchPrefill(CLI::App& bench, Action* chosen);
void AddBenchConcurrent(CLI::App& bench, Action* chosen);
void AddBenchLookup(CLI::App& bench, Action* chosen);
void AddBenchPump(CLI::App& bench, Action* chosen);
void AddBenchWarm(CLI::App& bench, Action* chosen);

}  // namespace kvmesh::cli
