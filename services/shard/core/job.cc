#include "services/shard/core/job.h"

#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/shard/core/sampler.h"

namespace kvmesh::shard {
namespace {

std::vector<float> FloatsOf(const std::string& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  if (!floats.empty()) std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

forward::TokenLogprob WithPiece(const SampledLogprob& sampled, const Vocabulary& vocabulary) {
  return {.token_id = sampled.token_id,
          .logprob = sampled.logprob,
          .piece = vocabulary.Piece(sampled.token_id)};
}

absl::StatusOr<forward::Output> Answer(const Job& job, absl::Span<const float> logits,
                                       const Vocabulary& vocabulary) {
  const uint64_t length = job.frame.past_len.value_or(0) + job.frame.tokens.size();
  const auto history = absl::MakeConstSpan(job.history).first(length);
  absl::StatusOr<SampledToken> token =
      Sample(logits, *job.sampling, history, job.prompt_tokens, length);
  if (!token.ok()) return token.status();
  forward::Output output{.step = job.frame.step,
                         .token_id = token->token_id,
                         .piece = vocabulary.Piece(token->token_id),
                         .finished = vocabulary.IsEndOfSequence(token->token_id),
                         .held = job.stateful ? length : 0};
  if (job.sampling->logprobs) {
    forward::Logprobs logprobs{.chosen = WithPiece(token->chosen, vocabulary)};
    for (const SampledLogprob& top : token->top) {
      logprobs.top.push_back(WithPiece(top, vocabulary));
    }
    output.logprobs = std::move(logprobs);
  }
  return output;
}

// The layers' part of a job; logits come back when the job samples.
absl::StatusOr<std::vector<float>> RunLayers(Job& job, Engine& engine, JobResult* result) {
  if (job.fresh) job.state = engine.NewState();
  const std::vector<float> hidden = FloatsOf(job.frame.hidden);
  StepItem item{.state = job.stateful ? &job.state : nullptr,
                .past_len = job.frame.past_len.value_or(0),
                .tokens = job.frame.tokens,
                .hidden = hidden,
                .want_logits = job.sample,
                .cancel = job.cancel.get()};
  engine.Step(absl::MakeSpan(&item, 1));
  if (!item.status.ok()) return item.status;
  result->state = std::move(job.state);
  for (const auto& layer : result->state) {
    if (layer != nullptr) result->state_bytes += layer->bytes();
  }
  result->rows = std::move(item.hidden_out);
  return std::move(item.logits);
}

}  // namespace

JobResult RunJob(Job& job, Engine& engine, const Vocabulary& vocabulary) {
  JobResult result;
  absl::StatusOr<std::vector<float>> logits =
      job.from_row ? engine.Logits(job.stored_row) : RunLayers(job, engine, &result);
  result.status = logits.status();
  if (logits.ok() && job.sample) {
    absl::StatusOr<forward::Output> output = Answer(job, *logits, vocabulary);
    result.status = output.status();
    if (output.ok()) result.output = *std::move(output);
  }
  result.frame = std::move(job.frame);
  result.history = std::move(job.history);
  return result;
}

}  // namespace kvmesh::shard
