// The seam between a stored prefix and the rest of a prompt (DESIGN §5.3): which ids a generation
// runs on when it starts from state that was made from the same bytes, perhaps of other tokens.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/text/tokenizer.h"
#include "services/router/core/key_text.h"

namespace kvmesh::router {

// A sequence and its text, both the caller's own. Immutable once it is shared.
struct PromptText {
  std::vector<uint32_t> ids;
  KeyText text;  // of `ids`
};

PromptText MakePromptText(std::vector<uint32_t> ids, const text::Tokenizer& tokenizer);

struct Seam {
  std::vector<uint32_t> ids;  // stored ids, then the suffix's
  size_t stored_tokens = 0;
  // How many of `ids` are not, at the same bytes, the caller's own.
  uint32_t drifted_tokens = 0;
};

// `stored_ids`: those of the stored row up to the cut point at `text_bytes`. At a boundary of the
// caller's tokens the suffix is the caller's remaining tokens; else the tokens of the text up to
// the caller's next control token, then the caller's own.
//   InvalidArgument     `text_bytes` lies behind the prompt.
//   DataLoss            the stored ids do not spell the prompt's first `text_bytes` bytes.
//   FailedPrecondition  no suffix spells the rest: the text cannot be cut there.
absl::StatusOr<Seam> JoinSeam(const text::Tokenizer& tokenizer, const PromptText& prompt,
                              absl::Span<const uint32_t> stored_ids, uint64_t text_bytes);

}  // namespace kvmesh::router
