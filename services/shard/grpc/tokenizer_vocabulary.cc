#include "services/shard/grpc/tokenizer_vocabulary.h"

#include <algorithm>
#include <utility>

namespace kvmesh::shard {

TokenizerVocabulary::TokenizerVocabulary(std::unique_ptr<const text::Tokenizer> tokenizer,
                                         const std::vector<uint32_t>& model_eos)
    : tokenizer_(std::move(tokenizer)), eos_(model_eos) {
  if (tokenizer_ != nullptr) {
    eos_.insert(eos_.end(), tokenizer_->eos_token_ids().begin(), tokenizer_->eos_token_ids().end());
  }
  std::sort(eos_.begin(), eos_.end());
}

std::string TokenizerVocabulary::Piece(uint32_t id) const {
  return tokenizer_ == nullptr ? std::string() : std::string(tokenizer_->TokenBytes(id));
}

std::string TokenizerVocabulary::KeyBytes(uint32_t id) const {
  return tokenizer_ == nullptr ? std::string() : tokenizer_->KeyBytes(id);
}

bool TokenizerVocabulary::IsEndOfSequence(uint32_t id) const {
  return std::binary_search(eos_.begin(), eos_.end(), id);
}

}  // namespace kvmesh::shard
