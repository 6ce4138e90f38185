// The router's own copy of a model: tokenizer, chat template and numbers, no weights. Immutable;
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "services/router/core/route_planner.h"

namespace kvmesh::router {

struct RouterModel {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;  // null: the model has none
  ModelIdentity identity;
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;          // tokens
  bool state_can_be_cut = false;        // every layer's state of n tokens holds that of fewer
  std::vector<uint32_t> eos_token_ids;  // the tokenizer's and the configuration's; sorted, unique
};

// Codes as of model::Model::Open, Tokenizer::FromModel and ChatTemplate::FromModel; no template is
// no error.
absl::StatusOr<RouterModel> LoadRouterModel(const std::string& path);

}  // namespace kvmesh::router
