#include "services/router/core/seam.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace kvmesh::router {
namespace {

constexpr char kEscape = '\xff';

// Raw bytes of key text that holds no control token. An escape is never cut: it belongs to one
// token.
std::string Unescape(absl::string_view text) {
  std::string raw;
  raw.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    raw.push_back(text[i]);
    if (text[i] == kEscape) ++i;
  }
  return raw;
}

// Whether the stored ids spell the text's beginning, no more and no less.
bool Spells(const text::Tokenizer& tokenizer, absl::Span<const uint32_t> ids,
            absl::string_view text) {
  size_t at = 0;
  for (const uint32_t id : ids) {
    const std::string bytes = tokenizer.KeyBytes(id);
    if (text.substr(at, bytes.size()) != bytes) return false;
    at += bytes.size();
  }
  return at == text.size();
}

// How many of the caller's tokens the first `text_bytes` bytes are, if they end with one of them.
std::optional<size_t> OwnTokens(const PromptText& prompt, absl::Span<const uint32_t> stored_ids,
                                uint64_t text_bytes) {
  const size_t stored = stored_ids.size();
  if (stored <= prompt.ids.size() && prompt.text.End(stored) == text_bytes &&
      std::equal(stored_ids.begin(), stored_ids.end(), prompt.ids.begin())) {
    return stored;
  }
  if (text_bytes == 0) return 0;
  const absl::Span<const uint64_t> ends = prompt.text.token_ends();
  const auto it = std::lower_bound(ends.begin(), ends.end(), text_bytes);
  if (it == ends.end() || *it != text_bytes) return std::nullopt;
  return static_cast<size_t>(it - ends.begin()) + 1;
}

// The suffix behind a cut inside one of the caller's tokens.
absl::StatusOr<std::vector<uint32_t>> Retokenize(const text::Tokenizer& tokenizer,
                                                 const PromptText& prompt, uint64_t text_bytes) {
  const absl::Span<const uint64_t> ends = prompt.text.token_ends();
  // The token that the cut falls into, then on to the next control token.
  auto next =
      static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), text_bytes) - ends.begin());
  if (next < prompt.ids.size() && tokenizer.IsControl(prompt.ids[next])) {
    return absl::FailedPreconditionError("the cut falls into a control token");
  }
  while (next < prompt.ids.size() && !tokenizer.IsControl(prompt.ids[next])) ++next;
  const absl::string_view rest =
      prompt.text.text().substr(text_bytes, prompt.text.End(next) - text_bytes);
  absl::StatusOr<std::vector<uint32_t>> ids =
      tokenizer.Encode(Unescape(rest), {.add_special = false, .parse_special = false});
  if (!ids.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the text behind the cut: ", ids.status().message()));
  }
  if (!Spells(tokenizer, *ids, rest)) {
    return absl::FailedPreconditionError("the tokens of the text behind the cut spell other text");
  }
  ids->insert(ids->end(), prompt.ids.begin() + static_cast<ptrdiff_t>(next), prompt.ids.end());
  return ids;
}

// Tokens of `ids` that are not, at the same bytes, the prompt's own. Both spell the same text.
uint32_t CountDrifted(const text::Tokenizer& tokenizer, const PromptText& prompt,
                      absl::Span<const uint32_t> ids) {
  uint32_t drifted = 0;
  uint64_t begin = 0;
  size_t own = 0;
  for (const uint32_t id : ids) {
    const uint64_t end = begin + tokenizer.KeyBytes(id).size();
    while (own < prompt.ids.size() &&
           (prompt.text.End(own) < begin ||
            (prompt.text.End(own) == begin && prompt.text.End(own + 1) < end))) {
      ++own;
    }
    const bool same = own < prompt.ids.size() && prompt.ids[own] == id &&
                      prompt.text.End(own) == begin && prompt.text.End(own + 1) == end;
    if (same) {
      ++own;
    } else {
      ++drifted;
    }
    begin = end;
  }
  return drifted;
}

}  // namespace

PromptText MakePromptText(std::vector<uint32_t> ids, const text::Tokenizer& tokenizer) {
  PromptText prompt{.ids = std::move(ids), .text = {}};
  prompt.text.Append(prompt.ids, tokenizer);
  return prompt;
}

absl::StatusOr<Seam> JoinSeam(const text::Tokenizer& tokenizer, const PromptText& prompt,
                              absl::Span<const uint32_t> stored_ids, uint64_t text_bytes) {
  const absl::string_view text = prompt.text.text();
  if (text_bytes > text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a cut at ", text_bytes, " bytes of a text of ", text.size()));
  }
  if (!Spells(tokenizer, stored_ids, text.substr(0, text_bytes))) {
    return absl::DataLossError(absl::StrCat("the ", stored_ids.size(),
                                            " stored ids do not spell the text's first ",
                                            text_bytes, " bytes"));
  }
  Seam seam{.ids = {stored_ids.begin(), stored_ids.end()}, .stored_tokens = stored_ids.size()};
  const std::optional<size_t> own = OwnTokens(prompt, stored_ids, text_bytes);
  if (own.has_value()) {
    seam.ids.insert(seam.ids.end(), prompt.ids.begin() + static_cast<ptrdiff_t>(*own),
                    prompt.ids.end());
  } else {
    KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> suffix,
                            Retokenize(tokenizer, prompt, text_bytes));
    seam.ids.insert(seam.ids.end(), suffix.begin(), suffix.end());
  }
  if (seam.ids != prompt.ids) seam.drifted_tokens = CountDrifted(tokenizer, prompt, seam.ids);
  return seam;
}

}  // namespace kvmesh::router
