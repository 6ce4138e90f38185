#include "tests/testing/toy_tokenizer.h"

#include "tests/testing/toy_engine.h"

namespace kvmesh::testing {

ToyTokenizer::ToyTokenizer() : eos_({kToyEos}) {
  for (uint32_t id = 0; id < kToyVocabSize; ++id) pieces_.push_back(ToyVocabulary().Piece(id));
}

absl::StatusOr<std::vector<uint32_t>> ToyTokenizer::Encode(
    absl::string_view text, const text::EncodeOptions& /*options*/) const {
  return ToyIds(text);
}

absl::StatusOr<std::vector<uint32_t>> ToyTokenizer::EncodeSpans(
    absl::Span<const text::TextSpan> spans) const {
  std::string text;
  for (const text::TextSpan& span : spans) text += span.text;
  return ToyIds(text);
}

uint32_t ToyTokenizer::vocab_size() const {
  return kToyVocabSize;
}

absl::string_view ToyTokenizer::TokenBytes(uint32_t id) const {
  return id < pieces_.size() ? absl::string_view(pieces_[id]) : absl::string_view();
}

bool ToyTokenizer::IsControl(uint32_t id) const {
  return id == kToyEos;
}

std::string ToyTokenizer::KeyBytes(uint32_t id) const {
  return ToyVocabulary().KeyBytes(id);
}

}  // namespace kvmesh::testing
