// Token ids to bytes and back, by the Hugging Face `tokenizers` crate. Immutable after loading;
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace kvmesh::text {

struct EncodeOptions {
  bool add_special = false;   // the tokenizer's own BOS/EOS around the text
  bool parse_special = true;  // text that spells a control token becomes that token
};

// A stretch of rendered chat text. Control-token text becomes a control token only where `trusted`.
struct TextSpan {
  std::string text;
  bool trusted = true;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // From a model path: DIR/tokenizer.json, or the metadata of a .gguf file (DESIGN §9; gpt2-type
  // BPE by its `pre` name, or sentencepiece-type with scores). NotFound: no tokenizer there.
  // InvalidArgument: malformed. Unimplemented: an unknown `pre` name or model, named.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromModel(const std::string& model_path);
  // From the contents of a tokenizer.json; `eos_tokens` are spellings of control tokens.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(
      absl::string_view tokenizer_json, const std::vector<std::string>& eos_tokens);

  // InvalidArgument: text is not UTF-8 (the byte offset is named) or longer than
  // limits::kTextBytesMax.
  virtual absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text,
                                                       const EncodeOptions& options) const = 0;

  // Encodes adjacent spans as one text, no added specials. Merges cross the joins.
  virtual absl::StatusOr<std::vector<uint32_t>> EncodeSpans(
      absl::Span<const TextSpan> spans) const = 0;

  // Ids are 0 .. vocab_size()-1; some may have no token.
  virtual uint32_t vocab_size() const = 0;

  // The raw bytes id stands for; empty for an id without a token. A control token's bytes are its
  // spelling. A CHECK never fires: ids at or above vocab_size() give empty.
  virtual absl::string_view TokenBytes(uint32_t id) const = 0;
  // A control token (added, special): skipped in text shown to people.
  virtual bool IsControl(uint32_t id) const = 0;
  // bytes(id) of DESIGN §5.1: raw bytes with 0xFF escaped as 0xFF 0x00; a control token is 0xFF
  // 0x01 u32_le(id).
  virtual std::string KeyBytes(uint32_t id) const = 0;

  // End-of-sequence ids that the tokenizer itself names. Sorted, unique.
  virtual const std::vector<uint32_t>& eos_token_ids() const = 0;
};

}  // namespace kvmesh::text
