// The text of a sequence of tokens as keys are made of it (DESIGN §5.1, escapes included), with the
// places where its tokens end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/sha256.h"
#include "common/forward/frames.h"
#include "common/slab/content_key.h"
#include "common/text/tokenizer.h"

namespace kvmesh::router {

// Copyable; not thread-safe.
class KeyText {
 public:
  void Append(absl::Span<const uint32_t> ids, const text::Tokenizer& tokenizer);

  size_t tokens() const { return ends_.size(); }
  absl::string_view text() const { return text_; }
  // The text's length after each token; ascends, not strictly: an id without a token has no text.
  absl::Span<const uint64_t> token_ends() const { return ends_; }
  // Of the first `tokens` (<= tokens()) tokens.
  absl::string_view Prefix(size_t tokens) const {
    return absl::string_view(text_).substr(0, End(tokens));
  }
  uint64_t End(size_t tokens) const { return tokens == 0 ? 0 : ends_[tokens - 1]; }
  // Whether a row may end there: not inside a character, and behind some text.
  bool IsBoundary(size_t tokens) const;
  // The last boundary at or before `tokens`; 0 for none.
  size_t BoundaryAtOrBefore(size_t tokens) const;

 private:
  std::string text_;
  std::vector<uint64_t> ends_;
};

// Keys of prefixes of one text that grows; each byte is hashed once as long as lengths grow.
class PrefixKeys {
 public:
  explicit PrefixKeys(const forward::CacheNamespace& cache_namespace);
  // Of the first `length` bytes. `text` begins with what the calls before have seen.
  Sha256Digest At(absl::string_view text, uint64_t length);

 private:
  slab::ContentKeyHasher empty_;
  slab::ContentKeyHasher running_;
  uint64_t hashed_ = 0;
};

}  // namespace kvmesh::router
