// Lower-case hexadecimal, as ids are written in logs, file names and inspection RPCs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvmesh {

// Two lower-case digits a byte.
std::string HexEncode(absl::string_view bytes);

// InvalidArgument: odd length, or a character outside [0-9a-fA-F] (its position is named).
absl::StatusOr<std::string> HexDecode(absl::string_view hex);

}  // namespace kvmesh
