// A tokenizer.json written from the metadata of a GGUF file. Pure. Internal to this folder.
#pragma once

#include "absl/status/statusor.h"
#include "common/model/gguf.h"
#include "common/text/model_text.h"

namespace kvmesh::text {

// NotFound: the file has no vocabulary. InvalidArgument: malformed; the key is named.
// Unimplemented: a tokenizer.ggml.model or tokenizer.ggml.pre that is not known, named.
absl::StatusOr<TokenizerSource> TokenizerFromGguf(const model::GgufFile& gguf);

// NotFound: the file has none. InvalidArgument: malformed.
absl::StatusOr<ChatTemplateSource> ChatTemplateFromGguf(const model::GgufFile& gguf);

}  // namespace kvmesh::text
