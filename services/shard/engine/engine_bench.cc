#include "services/shard/engine/engine_bench.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/cpu_count.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "services/shard/engine/make_engine.h"
#include "services/shard/engine/numerics.h"

namespace kvmesh::shard {
namespace {

constexpr uint32_t kWarmUpPrompt = 32;
constexpr uint32_t kWarmUpSteps = 4;
constexpr uint32_t kSessionsMax = 1024;

// Any ids do: time does not depend on them.
std::vector<uint32_t> SomeTokens(uint32_t count, uint32_t vocab_size) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = (i * 7919 + 13) % vocab_size;
  return tokens;
}

// Sessions that hold the same tokens and are decoded side by side.
class TimedSessions {
 public:
  // `profile`: the engine's.
  TimedSessions(Engine& engine, StepProfile& profile, uint32_t count)
      : engine_(engine), profile_(profile), items_(count), states_(count), next_(count) {
    for (uint32_t i = 0; i < count; ++i) {
      states_[i] = engine.NewState();
      items_[i].state = &states_[i];
    }
  }

  // One session after another; adds the work of each.
  absl::Status Prefill(absl::Span<const uint32_t> tokens, std::vector<TimedWork>& prompts) {
    const size_t chunk = limits::ChunkTokens(engine_.info().config.hidden_size);
    for (size_t i = 0; i < items_.size(); ++i) {
      TimedWork& prompt = prompts.emplace_back();
      profile_.costs = {};
      for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
        items_[i].past_len = begin;
        items_[i].tokens = tokens.subspan(begin, chunk);
        items_[i].want_logits = begin + chunk >= tokens.size();
        KVMESH_ASSIGN_OR_RETURN(const absl::Duration took, Step(i, 1));
        prompt.time += took;
      }
      prompt.costs = profile_.costs;
    }
    held_ = tokens.size();
    return absl::OkStatus();
  }

  // A step of all sessions.
  absl::StatusOr<TimedWork> Decode() {
    for (size_t i = 0; i < items_.size(); ++i) {
      items_[i].past_len = held_;
      items_[i].tokens = {&next_[i], 1};
      items_[i].want_logits = true;
    }
    ++held_;
    profile_.costs = {};
    KVMESH_ASSIGN_OR_RETURN(const absl::Duration took, Step(0, items_.size()));
    return TimedWork{.time = took, .costs = profile_.costs};
  }

 private:
  absl::StatusOr<absl::Duration> Step(size_t first, size_t count) {
    const MonoTime begin = profile_.clock.Now();
    engine_.Step({items_.data() + first, count});
    const absl::Duration took = profile_.clock.Now() - begin;
    for (size_t i = first; i < first + count; ++i) {
      KVMESH_RETURN_IF_ERROR(items_[i].status);
      if (!items_[i].want_logits) continue;
      const std::vector<float>& logits = items_[i].logits;
      next_[i] =
          static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
    return took;
  }

  Engine& engine_;
  StepProfile& profile_;
  std::vector<StepItem> items_;
  std::vector<SessionState> states_;
  std::vector<uint32_t> next_;
  uint64_t held_ = 0;
};

absl::Status CheckOptions(const model::ModelConfig& config, const EngineBenchOptions& options) {
  if (options.prompt_tokens == 0) return absl::InvalidArgumentError("a prompt without a token");
  if (options.rounds == 0) return absl::InvalidArgumentError("a measurement without a round");
  if (options.sessions == 0 || options.sessions > kSessionsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.sessions, " sessions, not 1 to ", kSessionsMax));
  }
  const uint64_t longest = uint64_t{options.prompt_tokens} + options.decode_tokens;
  if (longest > config.context_length) {
    return absl::InvalidArgumentError(
        absl::StrCat(longest, " tokens, the model's context is ", config.context_length));
  }
  return absl::OkStatus();
}

absl::Status WarmUp(Engine& engine, StepProfile& profile, MonoTime start,
                    EngineBenchResult& result) {
  TimedSessions session(engine, profile, 1);
  std::vector<TimedWork> prompts;
  KVMESH_RETURN_IF_ERROR(
      session.Prefill(SomeTokens(kWarmUpPrompt, engine.info().config.vocab_size), prompts));
  result.first_token = profile.clock.Now() - start;
  result.peak_memory_bytes = PeakMemoryBytes();
  for (uint32_t step = 0; step < kWarmUpSteps; ++step) {
    KVMESH_RETURN_IF_ERROR(session.Decode().status());
  }
  return absl::OkStatus();
}

// Of the bounds the better ones count: other work on the machine can only lower them.
absl::Status MeasureAgain(const Clock& clock, EngineBenchResult& result) {
  ComputePool pool(result.threads, [] {});
  KVMESH_ASSIGN_OR_RETURN(const MachineBounds bounds,
                          MeasureBounds(pool, result.set, result.weight_bytes, clock));
  MachineBounds& best = result.bounds;
  best.bytes_read = std::max(best.bytes_read, bounds.bytes_read);
  best.float_operations = std::max(best.float_operations, bounds.float_operations);
  best.word_operations = std::max(best.word_operations, bounds.word_operations);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EngineBenchResult> MeasureEngine(const model::Model& model,
                                                const EngineBenchOptions& options,
                                                const Clock& clock) {
  const model::ModelConfig& config = model.config();
  KVMESH_RETURN_IF_ERROR(CheckOptions(config, options));
  KVMESH_ASSIGN_OR_RETURN(const Numerics numerics, NumericsNamed(options.engine.numerics));
  EngineBenchResult result;
  result.numerics_id = numerics.id;
  result.set = numerics.set;
  result.threads = options.engine.threads != 0 ? options.engine.threads : UsableCpuCount();

  StepProfile profile{.clock = clock};
  EngineOptions engine_options = options.engine;
  engine_options.profile = &profile;
  const MonoTime start = clock.Now();
  KVMESH_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                          MakeEngine(model, {0, config.layer_count}, engine_options));
  result.load = clock.Now() - start;
  result.weight_bytes = engine->info().weight_bytes_held;
  KVMESH_RETURN_IF_ERROR(WarmUp(*engine, profile, start, result));

  KVMESH_RETURN_IF_ERROR(MeasureAgain(clock, result));
  const std::vector<uint32_t> prompt = SomeTokens(options.prompt_tokens, config.vocab_size);
  for (uint32_t round = 0; round < options.rounds; ++round) {
    TimedSessions sessions(*engine, profile, options.sessions);
    KVMESH_RETURN_IF_ERROR(sessions.Prefill(prompt, result.prefill));
    for (uint32_t step = 0; step < options.decode_tokens; ++step) {
      KVMESH_ASSIGN_OR_RETURN(const TimedWork timed, sessions.Decode());
      result.decode.push_back(timed);
    }
  }
  KVMESH_RETURN_IF_ERROR(MeasureAgain(clock, result));
  return result;
}

}  // namespace kvmesh::shard
