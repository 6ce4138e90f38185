#include "tests/mesh/toy_tokenizer.h"

#include <memory>

#include "common/base/sha256.h"
#include "tests/testing/toy_engine.h"
#include "tests/testing/toy_tokenizer.h"

namespace kvmesh::testing {

router::RouterModel ToyRouterModel(uint32_t layer_count, uint32_t context_length) {
  return {.tokenizer = std::make_shared<ToyTokenizer>(),
          .identity = {.layer_count = layer_count,
                       .config_digest = Sha256Of("toy config"),
                       .tokenizer_digest = Sha256Of("toy tokenizer")},
          .vocab_size = kToyVocabSize,
          .context_length = context_length,
          .state_can_be_cut = true,
          .eos_token_ids = {kToyEos}};
}

}  // namespace kvmesh::testing
