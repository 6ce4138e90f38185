// Picks the next token from logits: bias, penalties, temperature, top-k, top-p, min-p, a
// counter-based draw. Pure. The order and every edge follow tests/data/text/sampler (README in
// tests/data/text). All arithmetic is in double.
//
// Order: check the logits; logit_bias; repetition penalty (once per distinct id of prompt and
// output; negative logits are multiplied, others divided); presence and frequency penalty (output
// only); temperature < 1e-5: the highest logit, lowest id on ties; else divide by temperature,
// top_k, top_p, min_p, softmax, draw. Work is linear in the vocabulary: only the candidates that
// the draw reaches are ever sorted.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/forward/frames.h"

namespace kvmesh::shard {

struct SampledLogprob {
  uint32_t token_id = 0;
  double logprob = 0;  // natural log, of the untouched logits
};

struct SampledToken {
  uint32_t token_id = 0;
  SampledLogprob chosen;            // filled when logprobs are wanted
  std::vector<SampledLogprob> top;  // most likely first
};

// `position`: index in the whole sequence of the token that is being picked (= history.size()).
// `history`: prompt and output ids; the first `prompt_tokens` are the prompt. Ids outside the
// vocabulary are ignored. Internal, with the reason "nan_logits", "inf_logits" or "no_candidates"
// as the whole message.
absl::StatusOr<SampledToken> Sample(absl::Span<const float> logits,
                                    const forward::SamplingOptions& options,
                                    absl::Span<const uint32_t> history, uint32_t prompt_tokens,
                                    uint64_t position);

// The steps of Sample, apart.

struct Candidate {
  uint32_t token_id = 0;
  double probability = 0;
};

// The logits after bias and penalties. Errors as Sample.
absl::StatusOr<std::vector<double>> AdjustedLogits(absl::Span<const float> logits,
                                                   const forward::SamplingOptions& options,
                                                   absl::Span<const uint32_t> history,
                                                   uint32_t prompt_tokens);

// Everything that survives temperature and filters, most likely first, lowest id first on ties;
// never empty. Internal "no_candidates": every logit is -inf.
absl::StatusOr<std::vector<Candidate>> Survivors(absl::Span<const double> adjusted_logits,
                                                 const forward::SamplingOptions& options);

// log-softmax of the untouched logits: the `count` most likely. Finite or -inf logits only.
std::vector<SampledLogprob> TopLogprobs(absl::Span<const float> logits, uint32_t count);

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11; Random123).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The number in [0, 1) that decides the token at `position`: a function of these two alone.
double SamplingUniform(uint64_t seed, uint64_t position);

}  // namespace kvmesh::shard
