#include "common/base/ids.h"

#include <openssl/rand.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace internal {

absl::Status WrongIdLength(absl::string_view field, size_t got, size_t wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", got, " bytes; it must have exactly ", wanted));
}

}  // namespace internal

void RandomBytes(uint8_t* data, size_t size) {
  // Fails only when the operating system has no entropy source; going on would make ids collide.
  if (RAND_bytes(data, static_cast<int>(size)) != 1) std::abort();
}

}  // namespace kvmesh
