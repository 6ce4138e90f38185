// Answers, and what they are held against: the same generations without stored state.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "tests/process/process_testing.h"

namespace kvmesh::process_testing {

// Whether the long runs are wanted: KVMESH_TEST_ALL is set.
bool TestAll();

// A request with these ids for exactly `tokens` tokens, past any end of sequence, that returns its
// ids.
v1::GenerateRequest AskForIds(absl::Span<const uint32_t> ids, uint32_t tokens);

// The generation that `answer` is, run without checkpoints: on the ids it ran on, with the same
// draws. `cache` says whether sessions are used; `tokens` at most.
v1::GenerateRequest Uncached(const v1::GenerateRequest& request, const Answer& answer,
                             v1::CacheUse cache, uint32_t tokens);

// The first tokens of `answer` are those of `other`, with the same log probabilities to the last
// bit.
void ExpectBegins(const Answer& answer, const Answer& other);
// Likewise all of them.
void ExpectEqual(const Answer& answer, const Answer& other);

}  // namespace kvmesh::process_testing
