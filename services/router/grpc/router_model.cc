#include "services/router/grpc/router_model.h"

#include <algorithm>
#include <iterator>

#include "common/base/status_macros.h"
#include "common/model/digests.h"
#include "common/model/model_files.h"

namespace kvmesh::router {

absl::StatusOr<RouterModel> LoadRouterModel(const std::string& path) {
  RouterModel result;
  KVMESH_ASSIGN_OR_RETURN(const model::ModelFiles files, model::OpenModelFiles(path));
  KVMESH_ASSIGN_OR_RETURN(result.tokenizer, text::Tokenizer::FromModel(path));
  absl::StatusOr<std::unique_ptr<text::ChatTemplate>> chat_template =
      text::ChatTemplate::FromModel(path);
  if (chat_template.ok()) {
    result.chat_template = *std::move(chat_template);
  } else if (!absl::IsNotFound(chat_template.status())) {
    return chat_template.status();
  }
  const model::ModelConfig& config = files.config;
  result.identity = {.layer_count = config.layer_count,
                     .config_digest = model::ConfigDigest(config),
                     .tokenizer_digest = model::TokenizerDigest(files)};
  result.vocab_size = config.vocab_size;
  result.context_length = config.context_length;
  result.state_can_be_cut =
      std::all_of(config.layer_kinds.begin(), config.layer_kinds.end(),
                  [](model::LayerKind kind) { return kind == model::LayerKind::kKeyValue; });
  const std::vector<uint32_t>& named = result.tokenizer->eos_token_ids();
  std::set_union(named.begin(), named.end(), config.eos_token_ids.begin(),
                 config.eos_token_ids.end(), std::back_inserter(result.eos_token_ids));
  return result;
}

}  // namespace kvmesh::router
