#include "services/shard/grpc/tokenizer_vocabulary.h"

#include <algorithm>

namespace kvmesh::shard {

TokenizerVocabulary::TokenizerVocabulary(const text::Tokenizer* tokenizer,
                                         const std::vector<uint32_t>& model_eos)
    : eos_(model_eos) {
  if (tokenizer != nullptr) {
    eos_.insert(eos_.end(), tokenizer->eos_token_ids().begin(), tokenizer->eos_token_ids().end());
    for (uint32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      pieces_.Add(tokenizer->TokenBytes(id));
      key_bytes_.Add(tokenizer->KeyBytes(id));
    }
  }
  std::sort(eos_.begin(), eos_.end());
}

std::string TokenizerVocabulary::Piece(uint32_t id) const {
  return pieces_.At(id);
}

std::string TokenizerVocabulary::KeyBytes(uint32_t id) const {
  return key_bytes_.At(id);
}

bool TokenizerVocabulary::IsEndOfSequence(uint32_t id) const {
  return std::binary_search(eos_.begin(), eos_.end(), id);
}

void TokenizerVocabulary::Table::Add(absl::string_view entry) {
  bytes_.append(entry.data(), entry.size());
  ends_.push_back(bytes_.size());
}

std::string TokenizerVocabulary::Table::At(uint32_t id) const {
  if (id >= ends_.size()) return {};
  const size_t begin = id == 0 ? 0 : ends_[id - 1];
  return bytes_.substr(begin, ends_[id] - begin);
}

}  // namespace kvmesh::shard
