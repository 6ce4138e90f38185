#include "tests/unit/engine/engine_chain.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "tests/unit/engine/test_engines.h"

namespace kvmesh::shard {

absl::StatusOr<EngineChain> EngineChain::Make(const model::Model& model,
                                              const std::vector<uint32_t>& cuts,
                                              const EngineOptions& options) {
  EngineChain chain;
  std::vector<uint32_t> ends = cuts;
  ends.push_back(model.config().layer_count);
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    KVMESH_ASSIGN_OR_RETURN(auto engine, MakeTestEngine(model, {begin, end}, options));
    chain.engines_.push_back(std::move(engine));
    begin = end;
  }
  chain.NewSession();
  return chain;
}

void EngineChain::NewSession() {
  states_.clear();
  for (const auto& engine : engines_) states_.push_back(engine->NewState());
  held_ = 0;
}

absl::StatusOr<FedRows> EngineChain::Feed(const std::vector<uint32_t>& tokens) {
  return Run(tokens, /*stateless=*/false);
}

absl::StatusOr<FedRows> EngineChain::FeedStateless(const std::vector<uint32_t>& tokens) {
  return Run(tokens, /*stateless=*/true);
}

absl::StatusOr<FedRows> EngineChain::Run(const std::vector<uint32_t>& tokens, bool stateless) {
  FedRows fed;
  std::vector<float> hidden;
  for (size_t stage = 0; stage < engines_.size(); ++stage) {
    StepItem item;
    item.state = stateless ? nullptr : &states_[stage];
    item.past_len = stateless ? 0 : held_;
    item.tokens = tokens;
    item.hidden = hidden;
    item.want_logits = stage + 1 == engines_.size();
    engines_[stage]->Step({&item, 1});
    KVMESH_RETURN_IF_ERROR(item.status);
    hidden = item.hidden_out;
    fed.stage_hidden.push_back(std::move(item.hidden_out));
    fed.logits = std::move(item.logits);
  }
  if (!stateless) held_ += tokens.size();
  return fed;
}

uint32_t Greedy(const std::vector<float>& logits) {
  return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

absl::StatusOr<std::vector<uint32_t>> GreedyIds(EngineChain& chain,
                                                const std::vector<uint32_t>& prompt, size_t count) {
  chain.NewSession();
  std::vector<uint32_t> ids;
  std::vector<uint32_t> next = prompt;
  while (ids.size() < count) {
    KVMESH_ASSIGN_OR_RETURN(const FedRows fed, chain.Feed(next));
    ids.push_back(Greedy(fed.logits));
    next = {ids.back()};
  }
  return ids;
}

absl::StatusOr<std::vector<uint32_t>> GreedyIdsStateless(EngineChain& chain,
                                                         std::vector<uint32_t> prompt,
                                                         size_t count) {
  std::vector<uint32_t> ids;
  while (ids.size() < count) {
    KVMESH_ASSIGN_OR_RETURN(const FedRows fed, chain.FeedStateless(prompt));
    ids.push_back(Greedy(fed.logits));
    prompt.push_back(ids.back());
  }
  return ids;
}

}  // namespace kvmesh::shard
