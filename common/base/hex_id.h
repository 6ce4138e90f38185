// Ids that come from outside as hex digits.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace kvmesh {

// Id::FromHex, but the error names the field and how many digits it takes. InvalidArgument.
template <typename Id>
absl::StatusOr<Id> IdFromHex(absl::string_view hex, absl::string_view field) {
  absl::StatusOr<Id> id = Id::FromHex(hex, field);
  if (id.ok()) return id;
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", hex.size(), " characters; ", 2 * Id::kSize, " hex digits"));
}

}  // namespace kvmesh
