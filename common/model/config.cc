#include "common/model/config.h"

#include "absl/strings/str_cat.h"

namespace kvmesh::model {

absl::string_view ArchitectureName(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kQwen2:
      return "qwen2";
  }
  return "unknown";
}

std::optional<Architecture> ArchitectureByName(absl::string_view name) {
  for (const Architecture architecture : {Architecture::kLlama, Architecture::kQwen2}) {
    if (name == ArchitectureName(architecture)) return architecture;
  }
  return std::nullopt;
}

absl::Status CheckHeads(const ModelConfig& config, absl::string_view kv_heads_key,
                        absl::string_view head_dim_key) {
  if (config.head_count % config.kv_head_count != 0) {
    return absl::InvalidArgumentError(absl::StrCat("key ", kv_heads_key, ": ", config.head_count,
                                                   " heads cannot be shared out over ",
                                                   config.kv_head_count, " key/value heads"));
  }
  if (config.rope.dims == 0 || config.rope.dims > config.head_dim || config.rope.dims % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("key ", head_dim_key, ": of heads of ",
                                                   config.head_dim, " elements ", config.rope.dims,
                                                   " would be rotated; they go in pairs"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> DerivedHeadDim(const ModelConfig& config, absl::string_view hidden_key,
                                        absl::string_view heads_key) {
  if (config.hidden_size % config.head_count != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("key ", heads_key, ": ", hidden_key, " ", config.hidden_size,
                     " cannot be shared out over ", config.head_count, " heads"));
  }
  return config.hidden_size / config.head_count;
}

}  // namespace kvmesh::model
