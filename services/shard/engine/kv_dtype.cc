#include "services/shard/engine/kv_dtype.h"

#include "absl/strings/str_cat.h"

namespace kvmesh::shard {

absl::string_view NameOf(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kF16:
      return "f16";
    case KvDtype::kBF16:
      return "bf16";
    case KvDtype::kF32:
      break;
  }
  return "f32";
}

absl::StatusOr<KvDtype> KvDtypeNamed(absl::string_view name) {
  for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kBF16, KvDtype::kF32}) {
    if (name == NameOf(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("kv dtype \"", name, "\" is none of f16, bf16, f32"));
}

}  // namespace kvmesh::shard
