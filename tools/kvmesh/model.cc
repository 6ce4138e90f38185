// `model inspect`: what a model file holds, and what its shards would.
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/model.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "tools/kvmesh/command.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {
namespace {

std::string ErrorOrEmpty(const absl::Status& status) {
  return std::string(status.message());
}

Json StagesJson(const model::Model& model, uint32_t stage_count) {
  Json stages = Json::array();
  for (uint32_t stage = 0; stage < stage_count; ++stage) {
    const absl::StatusOr<LayerRange> range =
        model::StageRange(stage, stage_count, model.config().layer_count);
    if (!range.ok()) break;
    stages.push_back({{"layers", absl::StrCat(range->begin, ":", range->end)},
                      {"weight_bytes", model.WeightBytes(*range)}});
  }
  return stages;
}

absl::StatusOr<Json> Describe(const std::string& path, uint32_t stage_count) {
  KVMESH_ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model, model::Model::Open(path));
  const model::ModelConfig& config = model->config();
  if (stage_count > config.layer_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shards ", stage_count, ": the model has ", config.layer_count, " layers"));
  }
  const LayerRange all{.begin = 0, .end = config.layer_count};
  KVMESH_ASSIGN_OR_RETURN(const model::ModelDigests digests, model->Digests(all));
  const auto tokenizer = text::Tokenizer::FromModel(path);
  const auto chat_template = text::ChatTemplate::FromModel(path);
  const Sha256Digest fingerprint = model::ModelFingerprint(
      digests.layers, digests.embedding, digests.head, digests.config, digests.tokenizer);
  return Json{{"path", path},
              {"architecture", std::string(model::ArchitectureName(config.architecture))},
              {"model_fp", fingerprint.ToHex()},
              {"weight_types", model->weight_types()},
              {"weight_bytes", model->WeightBytes(all)},
              {"layer_count", config.layer_count},
              {"hidden_size", config.hidden_size},
              {"intermediate_size", config.intermediate_size},
              {"head_count", config.head_count},
              {"kv_head_count", config.kv_head_count},
              {"head_dim", config.head_dim},
              {"vocab_size", config.vocab_size},
              {"context_length", config.context_length},
              {"tied_embedding", config.tied_embedding},
              {"eos_token_ids", config.eos_token_ids},
              {"tokenizer", tokenizer.ok() ? Json((*tokenizer)->vocab_size()) : Json()},
              {"tokenizer_error", ErrorOrEmpty(tokenizer.status())},
              {"chat_template", chat_template.ok()},
              {"chat_template_error", ErrorOrEmpty(chat_template.status())},
              {"stages", StagesJson(*model, stage_count)}};
}

int Inspect(Context& context, const std::string& path, uint32_t stage_count) {
  const absl::StatusOr<Json> described = Describe(path, stage_count);
  if (!described.ok()) return Report(described.status(), context.json, false);
  if (context.json) {
    PrintJson(*described);
    return kDone;
  }
  for (const auto& [key, value] : described->items()) {
    if (key == "stages" || value == "") continue;
    std::printf("%-18s %s\n", key.c_str(),
                value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
  }
  for (const Json& stage : (*described)["stages"]) {
    std::printf("%-18s layers %s, %s of weights\n", "stage",
                stage["layers"].get<std::string>().c_str(),
                HumanBytes(stage["weight_bytes"].get<double>()).c_str());
  }
  return kDone;
}

}  // namespace

void AddModel(CLI::App& app, Action* chosen) {
  auto path = std::make_shared<std::string>();
  auto stage_count = std::make_shared<uint32_t>(1);
  CLI::App* model = app.add_subcommand("model", "Model files");
  model->require_subcommand(1);
  model->fallthrough();
  CLI::App* inspect = model->add_subcommand("inspect", "Configuration, sizes and fingerprint");
  inspect->add_option("path", *path, "A .gguf file or a Hugging Face directory")->required();
  inspect->add_option("--shards", *stage_count, "Show the weights of each of so many stages")
      ->capture_default_str()
      ->check(CLI::Range(1U, 4096U));
  inspect->callback(
      [=] { *chosen = [=](Context& context) { return Inspect(context, *path, *stage_count); }; });
}

}  // namespace kvmesh::cli
