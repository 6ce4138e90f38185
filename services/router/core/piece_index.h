// Finds the token that a piece of text is: for tails that answer with text alone. Immutable;
// thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/text/tokenizer.h"

namespace kvmesh::router {

class PieceIndex {
 public:
  // `tokenizer` must outlive it.
  explicit PieceIndex(const text::Tokenizer& tokenizer);

  // The ids of text that came in these pieces, in order: each piece's own token where only one has
  // these bytes, so that no id changes afterwards; else the tokenisation of the whole.
  // InvalidArgument: too long.
  absl::StatusOr<std::vector<uint32_t>> Ids(absl::Span<const std::string> pieces) const;

 private:
  const text::Tokenizer& tokenizer_;
  absl::flat_hash_map<std::string, uint32_t> ids_;  // bytes that exactly one token has
};

}  // namespace kvmesh::router
