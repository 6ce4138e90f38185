// Tokens to the text a client sees, and the decision where it ends: by end-of-sequence id, stop
// string or length. Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/forward/frames.h"
#include "common/text/detokenizer.h"
#include "common/text/tokenizer.h"
#include "services/router/core/generation.h"

namespace kvmesh::router {

struct TextOptions {
  std::vector<uint32_t> eos_token_ids;  // sorted
  bool ignore_eos = false;
  std::vector<std::string> stop_strings;  // empty ones are ignored
  uint32_t max_tokens = 0;
};

class TextAssembler {
 public:
  // `tokenizer` must outlive it.
  TextAssembler(const text::Tokenizer& tokenizer, TextOptions options);

  struct Step {
    std::string text;                           // to be shown now
    FinishReason reason = FinishReason::kNone;  // anything else: nothing follows
    std::string stop_string;                    // of kStop
  };
  // Control tokens give no text. A token without an id gives its piece.
  Step Push(const forward::Output& output);
  // How many of the tokens so far have no text that was not given out. One that ends inside a
  // character counts with the text before that character.
  uint32_t tokens_shown() const { return shown_; }

 private:
  bool IsEos(const forward::Output& output) const;
  Step End(std::string text, FinishReason reason);
  Step Decode(absl::string_view bytes, bool eos);

  const text::Tokenizer& tokenizer_;
  const TextOptions options_;
  text::Utf8Stream utf8_;
  text::StopMatcher stops_;
  uint32_t tokens_ = 0;
  uint64_t decoded_ = 0;       // bytes of text so far
  uint64_t given_ = 0;         // of these, given out
  std::deque<uint64_t> ends_;  // of the tokens not shown yet: decoded_ after each
  uint32_t shown_ = 0;
};

}  // namespace kvmesh::router
