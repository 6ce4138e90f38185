#include "services/shard/core/job.h"

#include <utility>

#include "services/shard/core/row_bytes.h"
#include "services/shard/core/sampler.h"

namespace kvmesh::shard {
namespace {

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

}  // namespace

// The layers' part of a job; logits come back when the job samples.
absl::StatusOr<absl::Span<const float>> JobRunner::RunLayers(Job& job, JobResult* result) {
  if (job.fresh) job.state = engine_.NewState();
  FloatsOf(job.frame.hidden, &hidden_);
  item_.state = job.stateful ? &job.state : nullptr;
  item_.past_len = job.frame.past_len.value_or(0);
  item_.tokens = job.frame.tokens;
  item_.hidden = hidden_;
  item_.want_logits = job.sample;
  item_.cancel = job.cancel.get();
  engine_.Step(absl::MakeSpan(&item_, 1));
  if (!item_.status.ok()) return item_.status;
  result->state = std::move(job.state);
  for (const auto& layer : result->state) {
    if (layer != nullptr) result->state_bytes += layer->bytes();
  }
  result->rows = item_.hidden_out;
  return absl::MakeConstSpan(item_.logits);
}

JobResult JobRunner::Run(Job& job) {
  JobResult result;
  absl::StatusOr<absl::Span<const float>> logits;
  if (job.from_row) {
    absl::StatusOr<std::vector<float>> of_row = engine_.Logits(job.stored_row);
    if (of_row.ok()) {
      logits_ = *std::move(of_row);
      logits = absl::MakeConstSpan(logits_);
    } else {
      logits = of_row.status();
    }
  } else {
    logits = RunLayers(job, &result);
  }
  result.status = logits.status();
  if (logits.ok() && job.sample) {
    absl::StatusOr<forward::Output> output = Answer(job, *logits, vocabulary_);
    result.status = output.status();
    if (output.ok()) result.output = *std::move(output);
  }
  result.frame = std::move(job.frame);
  result.history = std::move(job.history);
  return result;
}

}  // namespace kvmesh::shard
