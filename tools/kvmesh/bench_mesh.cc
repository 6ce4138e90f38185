// Benchmarks of one mesh: `flat`, `decode`, `prefill`, `concurrent`.
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tools/kvmesh/bench_util.h"
#include "tools/kvmesh/child.h"

namespace kvmesh::cli {
namespace {

constexpr uint32_t kWindow = 50;  // tokens around the one that is asked for

// Milliseconds a token takes around generated token `at`.
double WindowMs(const GenerationResult& result, uint32_t at) {
  const auto& times = result.finished.timings().per_token_ms();
  std::vector<double> window;
  for (int i = static_cast<int>(at - kWindow); i < static_cast<int>(at + kWindow); ++i) {
    if (i >= 1 && i < times.size()) window.push_back(times[i]);
  }
  return Median(window);
}

// One step of a stateless generation over `length` tokens, in milliseconds.
absl::StatusOr<double> StatelessStepMs(v1::RouterService::Stub& router, uint32_t length,
                                       Interrupt& interrupt) {
  KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt, PromptIds(router, length));
  KVMESH_ASSIGN_OR_RETURN(const GenerationResult result,
                          RunPrompt(router, prompt, 4, v1::CACHE_USE_STATELESS, interrupt));
  const auto& times = result.finished.timings().per_token_ms();
  if (times.size() < 2) return absl::InternalError("the answer has no timings");
  return Median(std::vector<double>(times.begin() + 1, times.end()));
}

absl::StatusOr<Json> Flat(const BenchTarget& target, Interrupt& interrupt) {
  KVMESH_ASSIGN_OR_RETURN(BenchMesh mesh, BenchMesh::Open(target, interrupt));
  KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt, PromptIds(mesh.router(), 16));
  Progress("one generation of 1,050 tokens");
  KVMESH_ASSIGN_OR_RETURN(
      const GenerationResult result,
      RunPrompt(mesh.router(), prompt, 1000 + kWindow, v1::CACHE_USE_OFF, interrupt));
  const double ms_100 = WindowMs(result, 100);
  const double ms_1000 = WindowMs(result, 1000);
  Progress("stateless steps");
  KVMESH_ASSIGN_OR_RETURN(const double stateless_100,
                          StatelessStepMs(mesh.router(), 100, interrupt));
  KVMESH_ASSIGN_OR_RETURN(const double stateless_1000,
                          StatelessStepMs(mesh.router(), 1000, interrupt));
  if (ms_100 <= 0 || ms_1000 <= 0) return absl::InternalError("the answer has no timings");
  return Json{{"ratio", ms_100 / ms_1000},
              {"tokens_per_second_at_100", 1000 / ms_100},
              {"tokens_per_second_at_1000", 1000 / ms_1000},
              {"stateless_step_ms_at_100", stateless_100},
              {"stateless_step_ms_at_1000", stateless_1000},
              {"stateless_ratio", stateless_100 / stateless_1000}};
}

absl::StatusOr<Json> Decode(const BenchTarget& target, uint32_t prompt_tokens, uint32_t tokens,
                            int rounds, Interrupt& interrupt) {
  KVMESH_ASSIGN_OR_RETURN(BenchMesh mesh, BenchMesh::Open(target, interrupt));
  KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt,
                          PromptIds(mesh.router(), prompt_tokens));
  std::vector<double> figures;
  for (int round = 0; round < rounds; ++round) {
    KVMESH_ASSIGN_OR_RETURN(const GenerationResult result,
                            RunPrompt(mesh.router(), prompt, tokens, v1::CACHE_USE_OFF, interrupt));
    figures.push_back(result.finished.timings().tokens_per_second());
    Progress(absl::StrCat("round ", round + 1, ": ", figures.back(), " tokens/s"));
  }
  return Json{{"tokens_per_second", Median(figures)},
              {"prompt_tokens", prompt_tokens},
              {"tokens", tokens},
              {"rounds", rounds}};
}

absl::StatusOr<Json> Prefill(const BenchTarget& target, uint32_t prompt_tokens, int rounds,
                             Interrupt& interrupt) {
  KVMESH_ASSIGN_OR_RETURN(BenchMesh mesh, BenchMesh::Open(target, interrupt));
  KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt,
                          PromptIds(mesh.router(), prompt_tokens));
  std::vector<double> figures;
  for (int round = 0; round < rounds; ++round) {
    KVMESH_ASSIGN_OR_RETURN(const GenerationResult result,
                            RunPrompt(mesh.router(), prompt, 1, v1::CACHE_USE_OFF, interrupt));
    const v1::Timings& timings = result.finished.timings();
    figures.push_back(prompt_tokens * 1000.0 /
                      std::max(timings.ttft_ms() - timings.queued_ms(), 1e-3));
    Progress(absl::StrCat("round ", round + 1, ": ", figures.back(), " tokens/s"));
  }
  return Json{
      {"tokens_per_second", Median(figures)}, {"prompt_tokens", prompt_tokens}, {"rounds", rounds}};
}

// Tokens per second of `sessions` generations at once, all their tokens over the time of the
// slowest.
absl::StatusOr<double> Aggregate(v1::RouterService::Stub& router,
                                 const std::vector<uint32_t>& prompt, uint32_t tokens, int sessions,
                                 Interrupt& interrupt) {
  std::vector<absl::Status> statuses(sessions);
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<size_t>(sessions));
    for (int i = 0; i < sessions; ++i) {
      threads.emplace_back([&, i] {
        std::vector<uint32_t> own = prompt;
        std::swap(own[0], own[static_cast<size_t>(i) % own.size()]);  // no two alike
        statuses[i] = RunPrompt(router, own, tokens, v1::CACHE_USE_OFF, interrupt).status();
      });
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  for (const absl::Status& status : statuses) KVMESH_RETURN_IF_ERROR(status);
  return sessions * tokens / seconds.count();
}

absl::StatusOr<Json> Concurrent(const BenchTarget& target, int sessions, uint32_t tokens,
                                int rounds, Interrupt& interrupt) {
  KVMESH_ASSIGN_OR_RETURN(BenchMesh mesh, BenchMesh::Open(target, interrupt));
  KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt, PromptIds(mesh.router(), 32));
  std::vector<double> one;
  std::vector<double> many;
  for (int round = 0; round < rounds; ++round) {
    KVMESH_ASSIGN_OR_RETURN(const double single,
                            Aggregate(mesh.router(), prompt, tokens, 1, interrupt));
    KVMESH_ASSIGN_OR_RETURN(const double all,
                            Aggregate(mesh.router(), prompt, tokens, sessions, interrupt));
    one.push_back(single);
    many.push_back(all);
    Progress(absl::StrCat("round ", round + 1, ": ", single, " and ", all, " tokens/s"));
  }
  return Json{{"ratio", Median(many) / Median(one)},
              {"sessions", sessions},
              {"tokens_per_second_of_one", Median(one)},
              {"tokens_per_second_of_all", Median(many)},
              {"tokens", tokens},
              {"rounds", rounds}};
}

struct RunFlags {
  BenchTarget target;
  uint32_t prompt_tokens = 64;
  uint32_t tokens = 128;
  int rounds = 5;
  int sessions = 4;
  // Of the engine alone.
  std::string numerics;
  std::string kv_dtype = "f16";
};

// Becomes kvmesh-bench-engine, which measures the engine alone. Returns only when that cannot be
// started.
int RunEngineBench(const std::string& what, const RunFlags& flags, Context& context) {
  std::vector<std::string> arguments = {ProgramFolder() + "/kvmesh-bench-engine",
                                        what,
                                        "--model",
                                        flags.target.model,
                                        "--threads",
                                        absl::StrCat(flags.target.threads),
                                        "--prompt-tokens",
                                        absl::StrCat(flags.prompt_tokens),
                                        "--tokens",
                                        absl::StrCat(flags.tokens),
                                        "--rounds",
                                        absl::StrCat(flags.rounds),
                                        "--sessions",
                                        absl::StrCat(flags.sessions),
                                        "--kv-dtype",
                                        flags.kv_dtype};
  if (!flags.numerics.empty()) {
    arguments.insert(arguments.end(), {"--numerics", flags.numerics});
  }
  if (context.json) arguments.emplace_back("--json");
  return Report(Become(arguments), context.json, false);
}

void AddEngineFlags(CLI::App& command, RunFlags& flags) {
  CLI::Option* model = command.get_option("--model");
  command
      .add_option("--numerics", flags.numerics,
                  "With --model: numerics id, or ID:SET; empty: the machine's best")
      ->needs(model);
  command.add_option("--kv-dtype", flags.kv_dtype, "With --model: of keys and values")
      ->capture_default_str()
      ->check(CLI::IsMember({"f16", "bf16", "f32"}))
      ->needs(model);
}

void AddTokens(CLI::App& command, RunFlags& flags) {
  command.add_option("--tokens", flags.tokens, "Tokens of each answer")
      ->capture_default_str()
      ->check(CLI::Range(2U, 1000000U));
}

void AddPromptTokens(CLI::App& command, RunFlags& flags) {
  command.add_option("--prompt-tokens", flags.prompt_tokens, "Tokens of the prompt")
      ->capture_default_str()
      ->check(CLI::Range(1U, 1000000U));
}

}  // namespace

void AddBenchFlat(CLI::App& bench, Action* chosen) {
  auto target = std::make_shared<BenchTarget>();
  CLI::App* command = bench.add_subcommand(
      "flat", "Cost of token 1,000 against token 100, with and without session state");
  AddTargetFlags(*command, *target);
  command->callback([=] {
    *chosen = [target](Context& context) {
      return FinishBench(Flat(*target, *context.interrupt), context);
    };
  });
}

void AddBenchDecode(CLI::App& bench, Action* chosen) {
  auto flags = std::make_shared<RunFlags>();
  flags->sessions = 1;
  CLI::App* command = bench.add_subcommand(
      "decode", "Tokens per second after the first: of a mesh, or of the engine alone");
  AddEngineTargetFlags(*command, flags->target);
  AddEngineFlags(*command, *flags);
  command
      ->add_option("--sessions", flags->sessions,
                   "With --model: sessions decoded side by side, a row each in every step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024))
      ->needs(command->get_option("--model"));
  AddPromptTokens(*command, *flags);
  AddTokens(*command, *flags);
  AddRounds(*command, flags->rounds);
  command->callback([=] {
    *chosen = [flags](Context& context) {
      if (!flags->target.model.empty()) return RunEngineBench("decode", *flags, context);
      return FinishBench(Decode(flags->target, flags->prompt_tokens, flags->tokens, flags->rounds,
                                *context.interrupt),
                         context);
    };
  });
}

void AddBenchPrefill(CLI::App& bench, Action* chosen) {
  auto flags = std::make_shared<RunFlags>();
  flags->prompt_tokens = 512;
  flags->sessions = 1;
  CLI::App* command = bench.add_subcommand(
      "prefill", "Prompt tokens per second: of a mesh, or of the engine alone");
  AddEngineTargetFlags(*command, flags->target);
  AddEngineFlags(*command, *flags);
  AddPromptTokens(*command, *flags);
  AddRounds(*command, flags->rounds);
  command->callback([=] {
    *chosen = [flags](Context& context) {
      if (!flags->target.model.empty()) return RunEngineBench("prefill", *flags, context);
      return FinishBench(
          Prefill(flags->target, flags->prompt_tokens, flags->rounds, *context.interrupt), context);
    };
  });
}

void AddBenchConcurrent(CLI::App& bench, Action* chosen) {
  auto flags = std::make_shared<RunFlags>();
  flags->tokens = 64;
  flags->rounds = 3;
  CLI::App* command = bench.add_subcommand("concurrent", "N sessions at once against one");
  AddTargetFlags(*command, flags->target);
  command->add_option("--sessions", flags->sessions, "N")
      ->capture_default_str()
      ->check(CLI::Range(2, 64));
  AddTokens(*command, *flags);
  AddRounds(*command, flags->rounds);
  command->callback([=] {
    *chosen = [flags](Context& context) {
      return FinishBench(Concurrent(flags->target, flags->sessions, flags->tokens, flags->rounds,
                                    *context.interrupt),
                         context);
    };
  });
}

}  // namespace kvmesh::cli
