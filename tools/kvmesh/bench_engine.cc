// kvmesh-bench-engine: what `kvmesh bench decode|prefill --model` runs. A program of its own, so
// that the command line does not load libtorch for everything else it does.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/model/model.h"
#include "services/shard/engine/engine_bench.h"
#include "services/shard/engine/kv_dtype.h"
#include "tools/kvmesh/bench_util.h"

namespace kvmesh::cli {
namespace {

struct Flags {
  std::string what;
  std::string model;
  std::string kv_dtype = "f16";
  shard::EngineBenchOptions options;
};

// What is in the middle of all that was measured.
template <typename Figure>
double MedianOf(const std::vector<shard::TimedWork>& all, const Figure& figure) {
  std::vector<double> figures;
  figures.reserve(all.size());
  for (const shard::TimedWork& work : all) figures.push_back(figure(work));
  return Median(figures);
}

// Where the time went: of a prompt, or of a step.
void AddSplit(const std::vector<shard::TimedWork>& all, Json& json) {
  using shard::TimedWork;
  json["products_ms"] = MedianOf(
      all, [](const TimedWork& work) { return absl::ToDoubleMilliseconds(work.costs.products); });
  json["attention_ms"] = MedianOf(
      all, [](const TimedWork& work) { return absl::ToDoubleMilliseconds(work.costs.attention); });
  json["rest_ms"] = MedianOf(all, [](const TimedWork& work) {
    return absl::ToDoubleMilliseconds(work.time - work.costs.products - work.costs.attention);
  });
}

double TimeMs(const shard::TimedWork& work) {
  return absl::ToDoubleMilliseconds(work.time);
}

// Bound: all weights, and the keys and values of each session, read once a step.
void AddDecode(const shard::EngineBenchResult& result, const Flags& flags, Json& json) {
  const double step_ms = MedianOf(result.decode, TimeMs);
  const double weights = MedianOf(result.decode, [](const shard::TimedWork& work) {
    return static_cast<double>(work.costs.weight_bytes);
  });
  const double attended = MedianOf(result.decode, [](const shard::TimedWork& work) {
    return static_cast<double>(work.costs.attended_bytes);
  });
  const double bound_ms = (weights + attended) / result.bounds.bytes_read * 1e3;
  json["tokens_per_second"] = flags.options.sessions * 1e3 / step_ms;
  json["step_ms"] = step_ms;
  json["bound_ms"] = bound_ms;
  json["share_of_bound"] = bound_ms / step_ms;
  AddSplit(result.decode, json);
  json["weights_read_mb"] = weights * 1e-6;
  json["kv_read_mb"] = attended * 1e-6;
  json["read_gb_per_second"] = result.bounds.bytes_read * 1e-9;
  json["tokens"] = flags.options.decode_tokens;
  json["sessions"] = flags.options.sessions;
}

// Bound: all multiply-adds at the rate of the instruction that does them, from registers.
void AddPrefill(const shard::EngineBenchResult& result, const Flags& flags, Json& json) {
  const double prompt_ms = MedianOf(result.prefill, TimeMs);
  const shard::StepCosts& costs = result.prefill[0].costs;  // those of every prompt, but for times
  const shard::MachineBounds& bounds = result.bounds;
  const double products_ms =
      (static_cast<double>(costs.float_operations) / bounds.float_operations +
       static_cast<double>(costs.word_operations) / bounds.word_operations) *
      1e3;
  const double attention_ms =
      static_cast<double>(costs.attention_operations) / bounds.float_operations * 1e3;
  json["tokens_per_second"] = flags.options.prompt_tokens * 1e3 / prompt_ms;
  json["prompt_ms"] = prompt_ms;
  json["bound_ms"] = products_ms + attention_ms;
  json["share_of_bound"] = (products_ms + attention_ms) / prompt_ms;
  AddSplit(result.prefill, json);
  json["products_share_of_bound"] = products_ms / json["products_ms"].get<double>();
  json["attention_share_of_bound"] = attention_ms / json["attention_ms"].get<double>();
  json["float_gflop_per_second"] = bounds.float_operations * 1e-9;
  json["word_gop_per_second"] = bounds.word_operations * 1e-9;
}

absl::StatusOr<Json> Measure(const Flags& flags) {
  const MonotonicClock clock;
  const MonoTime start = clock.Now();
  KVMESH_ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model,
                          model::Model::Open(flags.model));
  const absl::Duration open = clock.Now() - start;
  KVMESH_ASSIGN_OR_RETURN(const shard::EngineBenchResult result,
                          shard::MeasureEngine(*model, flags.options, clock));
  Json json;
  if (flags.what == "decode") {
    AddDecode(result, flags, json);
  } else {
    AddPrefill(result, flags, json);
  }
  json["prompt_tokens"] = flags.options.prompt_tokens;
  json["rounds"] = flags.options.rounds;
  json["threads"] = result.threads;
  json["weights"] = model->weight_types();
  json["kv_dtype"] = flags.kv_dtype;
  json["numerics"] = absl::StrCat(result.numerics_id, ":", shard::NameOf(result.set));
  json["load_ms"] = absl::ToDoubleMilliseconds(open + result.load);
  json["first_token_ms"] = absl::ToDoubleMilliseconds(open + result.first_token);
  json["weights_mb"] = static_cast<double>(result.weight_bytes) * 1e-6;
  json["peak_memory_mb"] = static_cast<double>(result.peak_memory_bytes) * 1e-6;
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
  app.add_option("--sessions", flags.options.sessions, "Sessions decoded side by side")
      ->capture_default_str();
  app.add_option("--rounds", flags.options.rounds, "Repetitions; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1U, 1000U));
  app.add_option("--numerics", flags.options.engine.numerics, "An id, or ID:SET; empty: the best");
  app.add_option("--kv-dtype", flags.kv_dtype, "Of keys and values: f16, bf16 or f32")
      ->capture_default_str();
  app.add_flag("--json", context.json, "Print one JSON object on stdout, nothing else");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
  const absl::StatusOr<shard::KvDtype> kv_dtype = shard::KvDtypeNamed(flags.kv_dtype);
  if (!kv_dtype.ok()) return Report(kv_dtype.status(), context.json, false);
  flags.options.engine.kv_dtype = *kv_dtype;
  if (flags.what == "prefill") flags.options.decode_tokens = 0;
  return FinishBench(Measure(flags), context);
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
