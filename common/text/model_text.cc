#include "common/text/model_text.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/gguf.h"
#include "common/model/mapped_file.h"
#include "common/text/gguf_tokenizer.h"

namespace kvmesh::text {
namespace {

using nlohmann::json;

constexpr uint64_t kTokenizerBytesMax = 256u << 20;
constexpr uint64_t kConfigBytesMax = 64u << 20;

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

template <typename Source>
absl::StatusOr<Source> FromGguf(const std::string& path,
                                absl::StatusOr<Source> (*read)(const model::GgufFile&)) {
  KVMESH_ASSIGN_OR_RETURN(const auto file, model::MappedFile::Open(path));
  const absl::StatusOr<model::GgufFile> gguf = model::GgufFile::Parse(file->bytes());
  if (!gguf.ok()) return InFile(path, gguf.status());
  absl::StatusOr<Source> source = read(*gguf);
  if (!source.ok()) return InFile(path, source.status());
  return source;
}

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

// Nothing when the file is absent.
absl::StatusOr<std::optional<std::string>> ReadOptional(const std::string& path) {
  absl::StatusOr<std::string> text = model::ReadSmallFile(path, kConfigBytesMax);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  if (!text.ok()) return text.status();
  return *std::move(text);
}

// An empty object when the file is absent.
absl::StatusOr<json> ReadJsonObject(const std::string& path) {
  KVMESH_ASSIGN_OR_RETURN(const auto text, ReadOptional(path));
  if (!text.has_value()) return json::object();
  json parsed = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  }
  return parsed;
}

// A special token stands as a string or as an object with its content.
std::optional<std::string> Spelling(const json& config, const std::string& name) {
  const auto field = config.find(name);
  if (field == config.end()) return std::nullopt;
  if (field->is_string()) return field->get<std::string>();
  if (field->is_object() && field->contains("content") && (*field)["content"].is_string()) {
    return (*field)["content"].get<std::string>();
  }
  return std::nullopt;
}

// tokenizer_config.json wins over the older special_tokens_map.json.
absl::StatusOr<std::map<std::string, std::string>> SpecialTokens(const std::string& directory,
                                                                 const json& config) {
  KVMESH_ASSIGN_OR_RETURN(const json map,
                          ReadJsonObject(absl::StrCat(directory, "/special_tokens_map.json")));
  std::map<std::string, std::string> special;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token",
                           "cls_token", "mask_token"}) {
    std::optional<std::string> spelling = Spelling(config, name);
    if (!spelling.has_value()) spelling = Spelling(map, name);
    if (spelling.has_value()) special[name] = *std::move(spelling);
  }
  return special;
}

// `chat_template` of a JSON file: the text, or a list of named ones, of which `default` counts.
std::optional<std::string> NamedTemplate(const json& config) {
  const auto field = config.find("chat_template");
  if (field == config.end()) return std::nullopt;
  if (field->is_string()) return field->get<std::string>();
  if (!field->is_array()) return std::nullopt;
  for (const json& entry : *field) {
    if (!entry.is_object() || Spelling(entry, "name") != "default") continue;
    return Spelling(entry, "template");
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<TokenizerSource> LoadTokenizerSource(const std::string& model_path) {
  if (!IsDirectory(model_path)) return FromGguf<TokenizerSource>(model_path, TokenizerFromGguf);
  TokenizerSource source;
  KVMESH_ASSIGN_OR_RETURN(
      source.json,
      model::ReadSmallFile(absl::StrCat(model_path, "/tokenizer.json"), kTokenizerBytesMax));
  KVMESH_ASSIGN_OR_RETURN(const json config,
                          ReadJsonObject(absl::StrCat(model_path, "/tokenizer_config.json")));
  KVMESH_ASSIGN_OR_RETURN(const auto special, SpecialTokens(model_path, config));
  const auto eos = special.find("eos_token");
  if (eos != special.end()) source.eos_tokens.push_back(eos->second);
  return source;
}

absl::StatusOr<ChatTemplateSource> LoadChatTemplateSource(const std::string& model_path) {
  if (!IsDirectory(model_path)) {
    return FromGguf<ChatTemplateSource>(model_path, ChatTemplateFromGguf);
  }
  KVMESH_ASSIGN_OR_RETURN(const json config,
                          ReadJsonObject(absl::StrCat(model_path, "/tokenizer_config.json")));
  ChatTemplateSource source;
  KVMESH_ASSIGN_OR_RETURN(source.special, SpecialTokens(model_path, config));
  KVMESH_ASSIGN_OR_RETURN(std::optional<std::string> text,
                          ReadOptional(absl::StrCat(model_path, "/chat_template.jinja")));
  if (!text.has_value()) {
    KVMESH_ASSIGN_OR_RETURN(const json own_file,
                            ReadJsonObject(absl::StrCat(model_path, "/chat_template.json")));
    text = NamedTemplate(own_file);
  }
  if (!text.has_value()) text = NamedTemplate(config);
  if (!text.has_value()) {
    return absl::NotFoundError(absl::StrCat(model_path, ": the model has no chat template"));
  }
  source.source = *std::move(text);
  return source;
}

}  // namespace kvmesh::text
