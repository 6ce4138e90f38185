#include "services/shard/engine/engine_bench.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "services/shard/engine/make_engine.h"

namespace kvmesh::shard {
namespace {

constexpr uint32_t kWarmUpSteps = 4;

// Any ids do: time does not depend on them.
std::vector<uint32_t> SomeTokens(uint32_t count, uint32_t vocab_size) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = (i * 7919 + 13) % vocab_size;
  return tokens;
}

// Times single steps of one session.
class TimedSession {
 public:
  TimedSession(Engine& engine, const Clock& clock)
      : engine_(engine), clock_(clock), state_(engine.NewState()) {}

  // `stateless`: the rows alone, nothing held before or after.
  absl::StatusOr<absl::Duration> Step(absl::Span<const uint32_t> tokens, bool want_logits,
                                      bool stateless = false) {
    StepItem item;
    item.state = stateless ? nullptr : &state_;
    item.past_len = stateless ? 0 : held_;
    item.tokens = tokens;
    item.want_logits = want_logits;
    const MonoTime begin = clock_.Now();
    engine_.Step({&item, 1});
    const absl::Duration took = clock_.Now() - begin;
    KVMESH_RETURN_IF_ERROR(item.status);
    if (!stateless) held_ += tokens.size();
    if (want_logits) {
      next_ = static_cast<uint32_t>(std::max_element(item.logits.begin(), item.logits.end()) -
                                    item.logits.begin());
    }
    return took;
  }

  absl::StatusOr<absl::Duration> Prefill(absl::Span<const uint32_t> tokens) {
    const size_t chunk = limits::ChunkTokens(engine_.info().config.hidden_size);
    absl::Duration total;
    for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
      const bool last = begin + chunk >= tokens.size();
      KVMESH_ASSIGN_OR_RETURN(const absl::Duration took, Step(tokens.subspan(begin, chunk), last));
      total += took;
    }
    return total;
  }

  absl::StatusOr<absl::Duration> Decode() {
    const uint32_t token = next_;
    return Step({&token, 1}, /*want_logits=*/true);
  }

 private:
  Engine& engine_;
  const Clock& clock_;
  SessionState state_;
  uint64_t held_ = 0;
  uint32_t next_ = 0;
};

absl::Status CheckOptions(const model::ModelConfig& config, const EngineBenchOptions& options) {
  uint64_t longest = uint64_t{options.prompt_tokens} + options.decode_tokens;
  bool empty = options.prompt_tokens == 0;
  for (const uint32_t length : options.stateless_lengths) {
    longest = std::max<uint64_t>(longest, length);
    empty |= length == 0;
  }
  if (empty) return absl::InvalidArgumentError("a measurement without a token");
  if (longest > config.context_length) {
    return absl::InvalidArgumentError(
        absl::StrCat(longest, " tokens, the model's context is ", config.context_length));
  }
  return absl::OkStatus();
}

absl::Status WarmUp(Engine& engine, const Clock& clock, absl::Span<const uint32_t> prompt) {
  TimedSession session(engine, clock);
  KVMESH_RETURN_IF_ERROR(session.Prefill(prompt.subspan(0, 32)).status());
  for (uint32_t step = 0; step < kWarmUpSteps; ++step) {
    KVMESH_RETURN_IF_ERROR(session.Decode().status());
  }
  return absl::OkStatus();
}

double PerSecond(size_t count, absl::Duration took) {
  return static_cast<double>(count) / std::max(1e-9, absl::ToDoubleSeconds(took));
}

}  // namespace

absl::StatusOr<EngineBenchResult> MeasureEngine(const model::Model& model,
                                                const EngineBenchOptions& options,
                                                const Clock& clock) {
  const model::ModelConfig& config = model.config();
  KVMESH_RETURN_IF_ERROR(CheckOptions(config, options));
  KVMESH_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                          MakeEngine(model, {0, config.layer_count}, options.engine));
  const std::vector<uint32_t> prompt = SomeTokens(options.prompt_tokens, config.vocab_size);
  KVMESH_RETURN_IF_ERROR(WarmUp(*engine, clock, prompt));

  EngineBenchResult result;
  TimedSession session(*engine, clock);
  KVMESH_ASSIGN_OR_RETURN(const absl::Duration prefill, session.Prefill(prompt));
  result.prefill_tokens_per_second = PerSecond(prompt.size(), prefill);
  absl::Duration decode;
  for (uint32_t step = 0; step < options.decode_tokens; ++step) {
    KVMESH_ASSIGN_OR_RETURN(const absl::Duration took, session.Decode());
    result.decode_steps.push_back(took);
    decode += took;
  }
  if (options.decode_tokens > 0) {
    result.decode_tokens_per_second = PerSecond(options.decode_tokens, decode);
  }
  for (const uint32_t length : options.stateless_lengths) {
    const std::vector<uint32_t> tokens = SomeTokens(length, config.vocab_size);
    KVMESH_ASSIGN_OR_RETURN(const absl::Duration took,
                            session.Step(tokens, /*want_logits=*/true, /*stateless=*/true));
    result.stateless_steps.push_back(took);
  }
  return result;
}

}  // namespace kvmesh::shard
