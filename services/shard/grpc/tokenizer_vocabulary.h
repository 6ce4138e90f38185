// The tail's view of a model's tokenizer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/text/tokenizer.h"
#include "services/shard/core/job.h"

namespace kvmesh::shard {

class TokenizerVocabulary final : public Vocabulary {
 public:
  // `tokenizer` may be null at a shard that neither picks tokens nor names stored state. A token of
  // `model_eos` or one that the tokenizer names ends a sequence.
  TokenizerVocabulary(std::unique_ptr<const text::Tokenizer> tokenizer,
                      const std::vector<uint32_t>& model_eos);

  std::string Piece(uint32_t id) const override;
  std::string KeyBytes(uint32_t id) const override;
  bool IsEndOfSequence(uint32_t id) const override;

 private:
  const std::unique_ptr<const text::Tokenizer> tokenizer_;
  std::vector<uint32_t> eos_;  // sorted
};

}  // namespace kvmesh::shard
