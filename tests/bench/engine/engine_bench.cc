// Decode and prefill of the engine alone, on the fetched model. CPU time stands beside wall time:
// on a busy machine it is the figure to compare.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/model/model.h"
#include "services/shard/engine/make_engine.h"

namespace kvmesh::shard {
namespace {

const model::Model& BenchModel() {
  static const std::unique_ptr<model::Model> model = [] {
    const char* folder = std::getenv("KVMESH_MODEL_DIR");
    const std::string path = std::string(folder != nullptr ? folder : "build/models") +
                             "/SmolLM2-135M-Instruct.Q4_1.gguf";
    auto opened = model::Model::Open(path);
    if (!opened.ok()) {
      std::fprintf(stderr, "%s\nFetch the model with tools/lib/fetch_model.sh.\n",
                   opened.status().ToString().c_str());
      std::exit(1);
    }
    return *std::move(opened);
  }();
  return *model;
}

std::unique_ptr<Engine> BenchEngine(benchmark::State& state) {
  const uint32_t layers = BenchModel().config().layer_count;
  auto engine =
      MakeEngine(BenchModel(), {0, layers}, {.threads = static_cast<uint32_t>(state.range(0))});
  if (!engine.ok()) {
    state.SkipWithError(engine.status().ToString().c_str());
    return nullptr;
  }
  return *std::move(engine);
}

std::vector<uint32_t> Tokens(size_t count) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<uint32_t>((i * 7919 + 13) % 40000);
  return tokens;
}

bool Run(benchmark::State& state, Engine& engine, SessionState* session, uint64_t held,
         absl::Span<const uint32_t> tokens) {
  StepItem item;
  item.state = session;
  item.past_len = held;
  item.tokens = tokens;
  item.want_logits = true;
  engine.Step({&item, 1});
  if (!item.status.ok()) state.SkipWithError(item.status.ToString().c_str());
  return item.status.ok();
}

// One token behind range(1) held ones (and those of the iterations before).
void BM_Decode(benchmark::State& state) {
  const auto engine = BenchEngine(state);
  if (engine == nullptr) return;
  SessionState session = engine->NewState();
  uint64_t held = static_cast<uint64_t>(state.range(1));
  if (!Run(state, *engine, &session, 0, Tokens(held))) return;
  const std::vector<uint32_t> token = {42};
  for (auto _ : state) {
    if (!Run(state, *engine, &session, held++, token)) return;
  }
  state.counters["tokens_per_second"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Decode)
    ->ArgNames({"threads", "held"})
    ->ArgsProduct({{1, 2}, {100, 1000}})
    ->Iterations(50)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// range(1) tokens at once in a fresh session.
void BM_Prefill(benchmark::State& state) {
  const auto engine = BenchEngine(state);
  if (engine == nullptr) return;
  const std::vector<uint32_t> tokens = Tokens(static_cast<size_t>(state.range(1)));
  for (auto _ : state) {
    SessionState session = engine->NewState();
    if (!Run(state, *engine, &session, 0, tokens)) return;
  }
  state.counters["tokens_per_second"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(tokens.size()),
      benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Prefill)
    ->ArgNames({"threads", "tokens"})
    ->ArgsProduct({{1, 2}, {4, 8, 16, 32, 512}})
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvmesh::shard

BENCHMARK_MAIN();
