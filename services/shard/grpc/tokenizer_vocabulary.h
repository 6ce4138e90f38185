// What a shard needs of a model's tokenizer: the bytes of each token. They are copied, so that the
// tokenizer itself, tens of megabytes, can go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/text/tokenizer.h"
#include "services/shard/core/job.h"

namespace kvmesh::shard {

class TokenizerVocabulary final : public Vocabulary {
 public:
  // `tokenizer` may be null at a shard that neither picks tokens nor names stored state; it is not
  // needed any more afterwards. A token of `model_eos` or one that the tokenizer names ends a
  // sequence.
  TokenizerVocabulary(const text::Tokenizer* tokenizer, const std::vector<uint32_t>& model_eos);

  std::string Piece(uint32_t id) const override;
  std::string KeyBytes(uint32_t id) const override;
  bool IsEndOfSequence(uint32_t id) const override;

 private:
  // One string for each id, end to end.
  class Table {
   public:
    void Add(absl::string_view entry);
    std::string At(uint32_t id) const;

   private:
    std::string bytes_;
    std::vector<size_t> ends_;
  };

  Table pieces_;
  Table key_bytes_;
  std::vector<uint32_t> eos_;  // sorted
};

}  // namespace kvmesh::shard
