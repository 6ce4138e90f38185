// A tokenizer of a few hand-made tokens. Immutable.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/text/tokenizer.h"

namespace kvmesh::router {

// Id i stands for pieces[i]; the last one is a control token and ends a sequence. Encodes one byte
// to the first token with it. `on_encode`, if any, is called with each text first.
class FakeTokenizer final : public text::Tokenizer {
 public:
  using OnEncode = std::function<void(absl::string_view text)>;

  explicit FakeTokenizer(std::vector<std::string> pieces, OnEncode on_encode = nullptr)
      : pieces_(std::move(pieces)),
        eos_({static_cast<uint32_t>(pieces_.size() - 1)}),
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
  bool IsControl(uint32_t id) const override { return id == eos_[0]; }
  std::string KeyBytes(uint32_t id) const override { return std::string(TokenBytes(id)); }
  const std::vector<uint32_t>& eos_token_ids() const override { return eos_; }

 private:
  std::vector<std::string> pieces_;
  std::vector<uint32_t> eos_;
  const OnEncode on_encode_;
};

}  // namespace kvmesh::router
