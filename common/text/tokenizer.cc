#include "common/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/text/model_text.h"
#include "common/text/rust_library.h"

namespace kvmesh::text {
namespace {

struct FreeTokenizer {
  void operator()(KtTokenizer* tokenizer) const { kt_tokenizer_free(tokenizer); }
};
using TokenizerHandle = std::unique_ptr<KtTokenizer, FreeTokenizer>;

struct Pieces {
  std::string bytes;
  std::vector<uint32_t> ends;  // of each id's bytes
  std::string control;         // one byte an id
};

class HuggingFaceTokenizer : public Tokenizer {
 public:
  HuggingFaceTokenizer(TokenizerHandle handle, Pieces pieces)
      : handle_(std::move(handle)), pieces_(std::move(pieces)) {}

  absl::StatusOr<std::vector<uint32_t>> Encode(absl::string_view text,
                                               const EncodeOptions& options) const override {
    const KtRange whole{0, text.size()};
    return EncodeRanges(
        text, options.parse_special ? absl::Span<const KtRange>() : absl::MakeSpan(&whole, 1),
        options.add_special);
  }

  absl::StatusOr<std::vector<uint32_t>> EncodeSpans(
      absl::Span<const TextSpan> spans) const override {
    std::string text;
    std::vector<KtRange> untrusted;
    for (const TextSpan& span : spans) {
      if (!span.trusted && !span.text.empty()) {
        untrusted.push_back({text.size(), text.size() + span.text.size()});
      }
      text += span.text;
    }
    return EncodeRanges(text, untrusted, /*add_special=*/false);
  }

  uint32_t vocab_size() const override { return static_cast<uint32_t>(pieces_.ends.size()); }

  absl::string_view TokenBytes(uint32_t id) const override {
    if (id >= vocab_size()) return "";
    const uint32_t begin = id == 0 ? 0 : pieces_.ends[id - 1];
    return absl::string_view(pieces_.bytes).substr(begin, pieces_.ends[id] - begin);
  }

  bool IsControl(uint32_t id) const override {
    return id < vocab_size() && pieces_.control[id] != 0;
  }

  std::string KeyBytes(uint32_t id) const override {
    std::string key;
    if (IsControl(id)) {
      key = "\xFF\x01";
      for (int shift = 0; shift < 32; shift += 8) key += static_cast<char>(id >> shift);
      return key;
    }
    for (const char byte : TokenBytes(id)) {
      key += byte;
      if (byte == '\xFF') key += '\0';
    }
    return key;
  }

  const std::vector<uint32_t>& eos_token_ids() const override { return eos_token_ids_; }

  void SetEos(const TokenizerSource& source) {
    eos_token_ids_ = source.eos_ids;
    for (const std::string& token : source.eos_tokens) {
      for (uint32_t id = 0; id < vocab_size(); ++id) {
        if (TokenBytes(id) == token && IsControl(id)) eos_token_ids_.push_back(id);
      }
    }
    std::sort(eos_token_ids_.begin(), eos_token_ids_.end());
    eos_token_ids_.erase(std::unique(eos_token_ids_.begin(), eos_token_ids_.end()),
                         eos_token_ids_.end());
  }

 private:
  absl::StatusOr<std::vector<uint32_t>> EncodeRanges(absl::string_view text,
                                                     absl::Span<const KtRange> untrusted,
                                                     bool add_special) const {
    if (text.size() > limits::kTextBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("text has ", text.size(), " bytes, at most ",
                                                     limits::kTextBytesMax, " are allowed"));
    }
    std::vector<uint32_t> ids;
    std::string error;
    const int32_t code =
        kt_tokenizer_encode(handle_.get(), ToSlice(text), untrusted.data(), untrusted.size(),
                            add_special, VectorSink(&ids), StringSink(&error));
    KVMESH_RETURN_IF_ERROR(ToStatus(code, error));
    return ids;
  }

  const TokenizerHandle handle_;
  const Pieces pieces_;
  std::vector<uint32_t> eos_token_ids_;
};

absl::StatusOr<std::unique_ptr<Tokenizer>> FromSource(const TokenizerSource& source) {
  KtTokenizer* raw = nullptr;
  std::string error;
  KVMESH_RETURN_IF_ERROR(
      ToStatus(kt_tokenizer_new(ToSlice(source.json), &raw, StringSink(&error)), error));
  TokenizerHandle handle(raw);
  Pieces pieces;
  KVMESH_RETURN_IF_ERROR(ToStatus(
      kt_tokenizer_pieces(handle.get(), StringSink(&pieces.bytes), VectorSink(&pieces.ends),
                          StringSink(&pieces.control), StringSink(&error)),
      error));
  auto tokenizer = std::make_unique<HuggingFaceTokenizer>(std::move(handle), std::move(pieces));
  tokenizer->SetEos(source);
  return tokenizer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromModel(const std::string& model_path) {
  KVMESH_ASSIGN_OR_RETURN(const TokenizerSource source, LoadTokenizerSource(model_path));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = FromSource(source);
  if (!tokenizer.ok()) {
    return absl::Status(tokenizer.status().code(),
                        absl::StrCat(model_path, ": ", tokenizer.status().message()));
  }
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(
    absl::string_view tokenizer_json, const std::vector<std::string>& eos_tokens) {
  return FromSource({.json = std::string(tokenizer_json), .eos_tokens = eos_tokens});
}

}  // namespace kvmesh::text
