// A model over one or more engines in a row, as a mesh runs it, for the tests of the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"
#include "services/shard/core/engine.h"
#include "services/shard/engine/decoder_engine.h"

namespace kvmesh::shard {

struct FedRows {
  std::vector<std::vector<float>> stage_hidden;  // [stages][rows * hidden_size]
  std::vector<float> logits;                     // of the last row
};

class EngineChain {
 public:
  // `cuts`: where one engine ends and the next begins, ascending; none: one engine for all layers.
  static absl::StatusOr<EngineChain> Make(const model::Model& model,
                                          const std::vector<uint32_t>& cuts,
                                          const EngineOptions& options);

  // Runs `tokens` behind what the session holds; with no session: stateless.
  void NewSession();
  absl::StatusOr<FedRows> Feed(const std::vector<uint32_t>& tokens);
  absl::StatusOr<FedRows> FeedStateless(const std::vector<uint32_t>& tokens);

  Engine& tail() { return *engines_.back(); }

 private:
  absl::StatusOr<FedRows> Run(const std::vector<uint32_t>& tokens, bool stateless);

  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<SessionState> states_;
  uint64_t held_ = 0;
};

// The id of the highest logit, the lowest id on ties.
uint32_t Greedy(const std::vector<float>& logits);

// `count` ids after `prompt`, greedily, in a new session: prefill, then one token at a time.
absl::StatusOr<std::vector<uint32_t>> GreedyIds(EngineChain& chain,
                                                const std::vector<uint32_t>& prompt, size_t count);

// As GreedyIds, running everything from the start for each token.
absl::StatusOr<std::vector<uint32_t>> GreedyIdsStateless(EngineChain& chain,
                                                         std::vector<uint32_t> prompt,
                                                         size_t count);

}  // namespace kvmesh::shard
