// What a GGUF file's `tokenizer.ggml.pre` name stands for: the parts of tokenizer.json that GGUF
// leaves out. Each expression is that of the tokenizer.json the name was made for. Internal to this
// folder.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/string_view.h"

namespace kvmesh::text {

struct PreTokenizer {
  nlohmann::json normalizer;  // or null
  nlohmann::json pre_tokenizer;
  bool ignore_merges = false;
  bool add_bos = false;  // unless the file says so itself
};

// Nothing: the name is not known. Guessing one gives fluent nonsense.
std::optional<PreTokenizer> PreTokenizerByName(absl::string_view pre);

}  // namespace kvmesh::text
