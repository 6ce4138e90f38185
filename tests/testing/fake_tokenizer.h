// A tokenizer of a few hand-made pieces that spells keys as the real ones do. Immutable.
#pragma once

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/slab/content_key.h"
#include "common/text/tokenizer.h"

namespace kvmesh::testing {

// Id i stands for pieces[i]; the ids in `control` are control tokens and end a sequence. Encodes
// one byte to the first token of just that byte; bytes without one vanish. `on_encode`, if any, is
// called with each text first.
class FakeTokenizer final : public text::Tokenizer {
 public:
  using OnEncode = std::function<void(absl::string_view text)>;

  explicit FakeTokenizer(std::vector<std::string> pieces, const std::set<uint32_t>& control = {},
                         OnEncode on_encode = nullptr)
      : pieces_(std::move(pieces)),
        control_(control.begin(), control.end()),
        on_encode_(std::move(on_encode)) {}

  absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text,
                                               const text::EncodeOptions&) const override {
    if (on_encode_ != nullptr) on_encode_(text);
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
  bool IsControl(uint32_t id) const override {
    return std::binary_search(control_.begin(), control_.end(), id);
  }
  std::string KeyBytes(uint32_t id) const override {
    std::string bytes;
    if (IsControl(id)) {
      slab::AppendControlToken(id, &bytes);
    } else {
      slab::AppendPiece(TokenBytes(id), &bytes);
    }
    return bytes;
  }
  const std::vector<uint32_t>& eos_token_ids() const override { return control_; }

 private:
  const std::vector<std::string> pieces_;
  const std::vector<uint32_t> control_;  // ascending
  const OnEncode on_encode_;
};

// The letters 'a' to 'z' as ids 0 to 25.
inline FakeTokenizer LetterTokenizer() {
  std::vector<std::string> letters;
  letters.reserve(26);
  for (char c = 'a'; c <= 'z'; ++c) letters.emplace_back(1, c);
  return FakeTokenizer(std::move(letters));
}

}  // namespace kvmesh::testing
