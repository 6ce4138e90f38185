// `bench warm`: what stored state saves, per tier. A long prompt cold, the same again, and a turn
// that follows it, each beside what it must not exceed: the restore alone (which is held against a
// plain byte pump), decode steps and the prefill of what is new. All in one run, so that what else
// the machine does hits all alike.
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "tools/kvmesh/bench_util.h"
#include "tools/kvmesh/pump_process.h"
#include "tools/kvmesh/warm_probe.h"

namespace kvmesh::cli {
namespace {

constexpr uint32_t kReplyTokens = 16;
constexpr double kDecodeSteps = 1.5;   // that a full hit may take beside its restore
constexpr double kPrefillShare = 1.2;  // of the prefill that a follow-up turn may take, likewise

struct WarmFlags {
  std::string model;
  int shards = 2;
  int threads = 0;
  uint32_t prompt_tokens = 2000;
  uint32_t follow_up_tokens = 50;
  uint32_t saves_tokens = 2200;  // 0: no generation with and without saves
  int rounds = 5;
  std::vector<std::string> tiers = {"ram", "ram_file", "disk"};
};

// Of one tier, a value a round.
struct TierFigures {
  std::vector<double> cold_ms, full_hit_ms, follow_up_ms;  // to the first token
  std::vector<double> restore_ms, follow_up_restore_ms;    // of the slowest shard
  std::vector<double> decode_step_ms, follow_up_prefill_ms, pump_ms;
  std::vector<double> cold_over_warm, full_hit_over_bound, follow_up_over_bound,
      restore_rate_over_pump;
};

struct Bench {
  const WarmFlags& flags;
  Interrupt& interrupt;
  BenchMesh& mesh;
  const WarmProbe& probe;
  PumpProcess& pump;
  int texts = 0;  // each prompt begins differently
};

double TtftMs(const GenerationResult& result) {
  return result.finished.timings().ttft_ms();
}

double DecodeStepMs(const GenerationResult& result) {
  const auto& times = result.finished.timings().per_token_ms();
  return times.size() < 2 ? 0 : Median(std::vector<double>(times.begin() + 1, times.end()));
}

// FailedPrecondition: it was not restored as `outcome` says, from `tier` alone.
absl::Status CheckReuse(const GenerationResult& result, const std::string& outcome,
                        const std::string& tier) {
  const v1::Usage& usage = result.finished.usage();
  const bool alone = usage.cached_by_tier().size() == 1 && usage.cached_by_tier().count(tier) == 1;
  if (usage.outcome() == outcome && alone) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "tier ", tier, ": the answer was ", usage.outcome(), " ", usage.cause(), " with ",
      usage.cached_tokens(), " cached tokens instead of ", outcome, "; has the tier the room?"));
}

absl::StatusOr<std::vector<uint32_t>> NewPrompt(Bench& bench, uint32_t tokens) {
  return PromptIds(bench.mesh.router(), tokens, absl::StrCat("Chapter ", ++bench.texts, ". "));
}

// One generation that saves to `tier` alone; everything it saves is stored when it returns.
absl::StatusOr<GenerationResult> AskTier(Bench& bench, const std::vector<uint32_t>& prompt,
                                         const std::string& tier, const std::string& parent_key) {
  v1::GenerateRequest request = PromptRequest(prompt, kReplyTokens, v1::CACHE_USE_ON);
  request.mutable_options()->set_save_tier(tier);
  request.mutable_options()->set_parent_key(parent_key);
  KVMESH_ASSIGN_OR_RETURN(const GenerationResult result,
                          RunRequest(bench.mesh.router(), request, bench.interrupt));
  KVMESH_RETURN_IF_ERROR(bench.probe.AwaitSaves(bench.interrupt));
  return result;
}

// The bytes of a restore through the pump, over as many connections as shards restore at once.
absl::StatusOr<double> PumpMs(Bench& bench, uint64_t tokens) {
  const uint64_t bytes = tokens * bench.probe.state_bytes_per_token();
  return bench.pump.Pull(bench.flags.shards, bytes / static_cast<uint64_t>(bench.flags.shards));
}

absl::Status RunRound(Bench& bench, const std::string& tier, TierFigures* figures) {
  KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt,
                          NewPrompt(bench, bench.flags.prompt_tokens));
  KVMESH_ASSIGN_OR_RETURN(const GenerationResult cold, AskTier(bench, prompt, tier, ""));

  KVMESH_ASSIGN_OR_RETURN(const ShardSums before_hit, bench.probe.Sums());
  KVMESH_ASSIGN_OR_RETURN(const GenerationResult hit, AskTier(bench, prompt, tier, ""));
  KVMESH_RETURN_IF_ERROR(CheckReuse(hit, "EXACT", tier));
  KVMESH_ASSIGN_OR_RETURN(const ShardSums after_hit, bench.probe.Sums());
  KVMESH_ASSIGN_OR_RETURN(const double pump_ms, PumpMs(bench, prompt.size()));

  // The hops have run all of the reply but its last token: the new turn is that one and the rest.
  KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> more,
                          NewPrompt(bench, bench.flags.follow_up_tokens - 1));
  std::vector<uint32_t> turn = prompt;
  turn.insert(turn.end(), hit.token_ids.begin(), hit.token_ids.end());
  turn.insert(turn.end(), more.begin(), more.end());
  KVMESH_ASSIGN_OR_RETURN(const GenerationResult follow_up,
                          AskTier(bench, turn, tier, hit.finished.finish_key()));
  KVMESH_RETURN_IF_ERROR(CheckReuse(follow_up, "PARTIAL", tier));
  KVMESH_ASSIGN_OR_RETURN(const ShardSums after_turn, bench.probe.Sums());

  TierFigures& f = *figures;
  f.cold_ms.push_back(TtftMs(cold));
  f.full_hit_ms.push_back(TtftMs(hit));
  f.follow_up_ms.push_back(TtftMs(follow_up));
  f.restore_ms.push_back(RestoreMs(before_hit, after_hit));
  f.follow_up_restore_ms.push_back(RestoreMs(after_hit, after_turn));
  f.decode_step_ms.push_back(DecodeStepMs(cold));
  f.follow_up_prefill_ms.push_back(PrefillMs(after_hit, after_turn));
  f.pump_ms.push_back(pump_ms);
  f.cold_over_warm.push_back(TtftMs(cold) / TtftMs(hit));
  f.full_hit_over_bound.push_back(TtftMs(hit) /
                                  (f.restore_ms.back() + kDecodeSteps * f.decode_step_ms.back()));
  f.follow_up_over_bound.push_back(
      TtftMs(follow_up) /
      (f.follow_up_restore_ms.back() + kPrefillShare * f.follow_up_prefill_ms.back()));
  f.restore_rate_over_pump.push_back(pump_ms / f.restore_ms.back());
  Progress(absl::StrCat(tier, ": cold ", f.cold_ms.back(), " ms, again ", f.full_hit_ms.back(),
                        " ms, follow-up ", f.follow_up_ms.back(), " ms"));
  return absl::OkStatus();
}

Json ToJson(const TierFigures& f) {
  return {{"cold_ms", Median(f.cold_ms)},
          {"warm_ms", Median(f.full_hit_ms)},
          {"ratio", Median(f.cold_over_warm)},
          {"restore_ms", Median(f.restore_ms)},
          {"pump_ms", Median(f.pump_ms)},
          {"decode_step_ms", Median(f.decode_step_ms)},
          {"follow_up_ms", Median(f.follow_up_ms)},
          {"follow_up_restore_ms", Median(f.follow_up_restore_ms)},
          {"follow_up_prefill_ms", Median(f.follow_up_prefill_ms)},
          {"warm_over_bound", Median(f.full_hit_over_bound)},
          {"follow_up_over_bound", Median(f.follow_up_over_bound)},
          {"restore_rate_over_pump", Median(f.restore_rate_over_pump)}};
}

// Tokens per second of long generations with saves under way against none; both in each round.
absl::StatusOr<Json> MeasureSaves(Bench& bench) {
  std::vector<double> on, off, ratios;
  KVMESH_ASSIGN_OR_RETURN(const ShardSums before, bench.probe.Sums());
  for (int round = 0; round < bench.flags.rounds; ++round) {
    double figures[2] = {};  // off, on
    for (const bool second : {false, true}) {
      const bool saves = (round % 2 == 0) != second;
      KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt, NewPrompt(bench, 64));
      v1::GenerateRequest request = PromptRequest(prompt, bench.flags.saves_tokens,
                                                  saves ? v1::CACHE_USE_ON : v1::CACHE_USE_OFF);
      request.mutable_options()->set_save_tier(bench.flags.tiers.front());
      KVMESH_ASSIGN_OR_RETURN(const GenerationResult result,
                              RunRequest(bench.mesh.router(), request, bench.interrupt));
      KVMESH_RETURN_IF_ERROR(bench.probe.AwaitSaves(bench.interrupt));
      figures[saves ? 1 : 0] = result.finished.timings().tokens_per_second();
    }
    off.push_back(figures[0]);
    on.push_back(figures[1]);
    ratios.push_back(figures[1] / figures[0]);
    Progress(absl::StrCat("saves on: ", on.back(), ", off: ", off.back(), " tokens/s"));
  }
  KVMESH_ASSIGN_OR_RETURN(const ShardSums after, bench.probe.Sums());
  if (after.continued_saves <= before.continued_saves) {
    return absl::FailedPreconditionError(absl::StrCat("nothing was saved meanwhile: are ",
                                                      bench.flags.saves_tokens, " tokens enough?"));
  }
  return Json{{"ratio", Median(ratios)},
              {"tokens_per_second_on", Median(on)},
              {"tokens_per_second_off", Median(off)},
              {"tokens", bench.flags.saves_tokens},
              {"slabs_saved_meanwhile", after.continued_saves - before.continued_saves}};
}

absl::StatusOr<Json> Warm(const WarmFlags& flags, Interrupt& interrupt) {
  const BenchTarget target{
      .model = flags.model, .shards = flags.shards, .threads = flags.threads, .tiers = flags.tiers};
  KVMESH_ASSIGN_OR_RETURN(BenchMesh mesh, BenchMesh::Open(target, interrupt));
  KVMESH_ASSIGN_OR_RETURN(const WarmProbe probe, WarmProbe::Make(*mesh.local()));
  const TempFolder folder;
  KVMESH_ASSIGN_OR_RETURN(PumpProcess pump, PumpProcess::Start(folder.path(), interrupt));
  Bench bench{flags, interrupt, mesh, probe, pump};
  std::vector<TierFigures> figures(flags.tiers.size());
  for (int round = 0; round <= flags.rounds; ++round) {
    if (round == 1) figures.assign(flags.tiers.size(), {});  // the first only warms up
    for (size_t tier = 0; tier < flags.tiers.size(); ++tier) {
      KVMESH_RETURN_IF_ERROR(RunRound(bench, flags.tiers[tier], &figures[tier]));
    }
  }
  Json tiers = Json::object();
  for (size_t tier = 0; tier < flags.tiers.size(); ++tier) {
    tiers[flags.tiers[tier]] = ToJson(figures[tier]);
  }
  Json json{{"tiers", tiers}};
  KVMESH_ASSIGN_OR_RETURN(json["saved_over_state_bytes"], probe.SavedOverState());
  if (flags.saves_tokens > 0) {
    KVMESH_ASSIGN_OR_RETURN(json["saves"], MeasureSaves(bench));
  }
  json["targets"] = {{"warm_over_bound", "<= 1"},
                     {"follow_up_over_bound", "<= 1"},
                     {"restore_rate_over_pump", ">= 0.7"},
                     {"saved_over_state_bytes", "<= 1.02"},
                     {"saves.ratio", ">= 0.97"}};
  json["prompt_tokens"] = flags.prompt_tokens;
  json["follow_up_tokens"] = flags.follow_up_tokens;
  json["shards"] = flags.shards;
  json["rounds"] = flags.rounds;
  return json;
}

void AddFlags(CLI::App& command, WarmFlags& flags) {
  command.add_option("--model", flags.model, "A .gguf file or a Hugging Face directory")
      ->required();
  command.add_option("--shards", flags.shards, "Stages of the benchmark's own mesh")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command.add_option("--threads", flags.threads, "Compute threads of every shard; 0: its default")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command.add_option("--tiers", flags.tiers, "Tiers to measure, one after another")
      ->capture_default_str()
      ->delimiter(',');
  command
      .add_option("--prompt-tokens", flags.prompt_tokens,
                  "Tokens of the prompt; fewer than 512 are not stored")
      ->capture_default_str()
      ->check(CLI::Range(512U, 30000U));
  command.add_option("--follow-up-tokens", flags.follow_up_tokens, "New tokens of the turn after")
      ->capture_default_str()
      ->check(CLI::Range(2U, 4096U));
  command
      .add_option("--saves-tokens", flags.saves_tokens,
                  "Tokens of the generations with and without saves; 0: leave these out")
      ->capture_default_str()
      ->check(CLI::Range(0U, 30000U));
  AddRounds(command, flags.rounds);
}

}  // namespace

void AddBenchWarm(CLI::App& bench, Action* chosen) {
  auto flags = std::make_shared<WarmFlags>();
  CLI::App* command = bench.add_subcommand(
      "warm", "A long prompt cold, again, and its next turn, per tier, against what bounds them");
  AddFlags(*command, *flags);
  command->callback([=] {
    *chosen = [flags](Context& context) {
      return FinishBench(Warm(*flags, *context.interrupt), context);
    };
  });
}

}  // namespace kvmesh::cli
