// kvmesh-bench-engine: what `kvmesh bench decode|prefill --model` runs. A program of its own, so
// that the command line does not load libtorch for everything else it does.
#include <cstdio>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/model/model.h"
#include "services/shard/engine/engine_bench.h"
#include "tools/kvmesh/bench_util.h"

namespace kvmesh::cli {
namespace {

struct Flags {
  std::string what;
  std::string model;
  shard::EngineBenchOptions options;
  int rounds = 5;
};

absl::StatusOr<Json> Measure(const Flags& flags) {
  KVMESH_ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model,
                          model::Model::Open(flags.model));
  const bool decode = flags.what == "decode";
  const MonotonicClock clock;
  std::vector<double> figures;
  for (int round = 0; round < flags.rounds; ++round) {
    KVMESH_ASSIGN_OR_RETURN(const shard::EngineBenchResult result,
                            shard::MeasureEngine(*model, flags.options, clock));
    figures.push_back(decode ? result.decode_tokens_per_second : result.prefill_tokens_per_second);
  }
  Json json = {{"tokens_per_second", Median(figures)},
               {"prompt_tokens", flags.options.prompt_tokens}};
  if (decode) json["tokens"] = flags.options.decode_tokens;
  json["rounds"] = flags.rounds;
  return json;
}

int Main(int argc, char** argv) {
  Flags flags;
  Context context;
  CLI::App app("Measures one engine with all layers of a model, without a mesh around it",
               "kvmesh-bench-engine");
  app.add_option("what", flags.what, "decode or prefill")
      ->required()
      ->check(CLI::IsMember({"decode", "prefill"}));
  app.add_option("--model", flags.model, "A .gguf file or a Hugging Face directory")->required();
  app.add_option("--threads", flags.options.engine.threads, "Compute threads; 0: all processors")
      ->capture_default_str();
  app.add_option("--prompt-tokens", flags.options.prompt_tokens, "Tokens of the prompt")
      ->capture_default_str();
  app.add_option("--tokens", flags.options.decode_tokens, "Tokens decoded")->capture_default_str();
  app.add_option("--rounds", flags.rounds, "Repetitions; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", context.json, "Print one JSON object on stdout, nothing else");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
  const absl::StatusOr<Json> figures = Measure(flags);
  if (!figures.ok()) return Report(figures.status(), context.json, false);
  return PrintFigures(*figures, context);
}

}  // namespace
}  // namespace kvmesh::cli

int main(int argc, char** argv) {
  try {
    return kvmesh::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kvmesh::cli::kFailed;
  }
}
