// Names and sizes of the types that keys and values are rounded to. The name is part of `quant`,
// and so of the key of every saved state.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/shard/engine/kernels/step_kernels.h"

namespace kvmesh::shard {

constexpr size_t BytesOf(KvDtype dtype) {
  return dtype == KvDtype::kF32 ? 4 : 2;
}

// "f16", "bf16", "f32".
absl::string_view NameOf(KvDtype dtype);

// InvalidArgument: no such type; the known ones are named.
absl::StatusOr<KvDtype> KvDtypeNamed(absl::string_view name);

}  // namespace kvmesh::shard
