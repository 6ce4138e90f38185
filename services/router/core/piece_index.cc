#include "services/router/core/piece_index.h"

#include "absl/container/flat_hash_set.h"
#include "common/text/detokenizer.h"

namespace kvmesh::router {

PieceIndex::PieceIndex(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  absl::flat_hash_set<std::string> ambiguous;
  for (uint32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string bytes(tokenizer.TokenBytes(id));
    if (bytes.empty() || ambiguous.contains(bytes)) continue;
    const auto [it, inserted] = ids_.emplace(bytes, id);
    if (inserted) continue;
    ids_.erase(it);
    ambiguous.insert(std::move(bytes));
  }
}

absl::StatusOr<std::vector<uint32_t>> PieceIndex::Ids(absl::Span<const std::string> pieces) const {
  std::vector<uint32_t> ids;
  std::string bytes;
  for (const std::string& piece : pieces) {
    const auto it = ids_.find(piece);
    if (it != ids_.end()) ids.push_back(it->second);
    bytes += piece;
  }
  if (ids.size() == pieces.size()) return ids;
  text::Utf8Stream utf8;
  std::string text = utf8.Push(bytes);
  text += utf8.Flush();
  return tokenizer_.Encode(text, {.add_special = false, .parse_special = true});
}

}  // namespace kvmesh::router
