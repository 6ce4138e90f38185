// The toy model's tokenizer: one printable character a token.
#pragma once

#include <string>
#include <vector>

#include "common/text/tokenizer.h"

namespace kvmesh::testing {

// InvalidArgument from Encode: a byte outside the vocabulary. Thread-safe.
class ToyTokenizer final : public text::Tokenizer {
 public:
  ToyTokenizer();
  absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text,
                                               const text::EncodeOptions& options) const override;
  absl::StatusOr<std::vector<uint32_t>> EncodeSpans(
      absl::Span<const text::TextSpan> spans) const override;
  uint32_t vocab_size() const override;
  absl::string_view TokenBytes(uint32_t id) const override;
  bool IsControl(uint32_t id) const override;
  std::string KeyBytes(uint32_t id) const override;
  const std::vector<uint32_t>& eos_token_ids() const override { return eos_; }

 private:
  std::vector<std::string> pieces_;
  std::vector<uint32_t> eos_;
};

}  // namespace kvmesh::testing
