// The text part of a model, as its files hold it: a tokenizer.json, the special tokens by name, and
// the chat template. Internal to this folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvmesh::text {

struct TokenizerSource {
  std::string json;  // a tokenizer.json
  std::vector<std::string> eos_tokens;
  std::vector<uint32_t> eos_ids;
};

struct ChatTemplateSource {
  std::string source;
  std::map<std::string, std::string> special;  // bos_token, eos_token, …
};

// NotFound: the model has none. InvalidArgument: malformed. Unimplemented: a kind that is not
// supported, named.
absl::StatusOr<TokenizerSource> LoadTokenizerSource(const std::string& model_path);
absl::StatusOr<ChatTemplateSource> LoadChatTemplateSource(const std::string& model_path);

}  // namespace kvmesh::text
