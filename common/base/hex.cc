#include "common/base/hex.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kvmesh {

std::string HexEncode(absl::string_view bytes) {
  return absl::BytesToHexString(bytes);
}

absl::StatusOr<std::string> HexDecode(absl::string_view hex) {
  if (hex.size() % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hex text has ", hex.size(), " digits; the number must be even"));
  }
  for (size_t i = 0; i < hex.size(); ++i) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(hex[i]))) {
      return absl::InvalidArgumentError(absl::StrCat("hex text has a wrong digit at position ", i));
    }
  }
  return absl::HexStringToBytes(hex);
}

}  // namespace kvmesh
