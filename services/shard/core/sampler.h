// Picks the next token from logits: bias, penalties, temperature, top-k, top-p, min-p, a counter-based draw. Pure.
// The order and every edge follow tests/data/text/sampler (normative; README in the fixtures).
#pragma once

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
// `history`: prompt and output ids; the first `prompt_tokens` are the prompt.
// Internal, with the reason "nan_logits", "inf_logits" or "no_candidates" as the whole message.
absl::StatusOr<SampledToken> Sample(absl::Span<const float> logits, const forward::SamplingOptions& options,
                                    absl::Span<const uint32_t> history, uint32_t prompt_tokens,
                                    uint64_t position);

}  // namespace kvmesh::shard
