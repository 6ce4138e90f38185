// A tokenizer of hand-made pieces that spells keys as the real ones do. Immutable.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/slab/content_key.h"
#include "common/text/tokenizer.h"

namespace kvmesh::router {

// Id i stands for pieces[i]. Encodes one byte to the first token of just that byte; bytes without
// one vanish.
class KeyTokenizer final : public text::Tokenizer {
 public:
  KeyTokenizer(std::vector<std::string> pieces, std::set<uint32_t> control)
      : pieces_(std::move(pieces)), control_(std::move(control)) {}

  absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text,
                                               const text::EncodeOptions&) const override {
    std::vector<uint32_t> ids;
    for (const char c : text) {
      for (uint32_t id = 0; id < pieces_.size(); ++id) {
        if (pieces_[id] != std::string(1, c)) continue;
        ids.push_back(id);
        break;
      }
    }
    return ids;
  }
  absl::StatusOr<std::vector<uint32_t>> EncodeSpans(
      absl::Span<const text::TextSpan> spans) const override {
    std::string text;
    for (const text::TextSpan& span : spans) text += span.text;
    return Encode(text, {});
  }
  uint32_t vocab_size() const override { return static_cast<uint32_t>(pieces_.size()); }
  absl::string_view TokenBytes(uint32_t id) const override {
    return id < pieces_.size() ? absl::string_view(pieces_[id]) : absl::string_view();
  }
  bool IsControl(uint32_t id) const override { return control_.count(id) > 0; }
  std::string KeyBytes(uint32_t id) const override {
    std::string bytes;
    if (IsControl(id)) {
      slab::AppendControlToken(id, &bytes);
    } else {
      slab::AppendPiece(TokenBytes(id), &bytes);
    }
    return bytes;
  }
  const std::vector<uint32_t>& eos_token_ids() const override { return eos_; }

 private:
  const std::vector<std::string> pieces_;
  const std::set<uint32_t> control_;
  const std::vector<uint32_t> eos_;
};

// The letters 'a' to 'z' as ids 0 to 25.
inline KeyTokenizer LetterTokenizer() {
  std::vector<std::string> letters;
  letters.reserve(26);
  for (char c = 'a'; c <= 'z'; ++c) letters.emplace_back(1, c);
  return KeyTokenizer(std::move(letters), {});
}

}  // namespace kvmesh::router
