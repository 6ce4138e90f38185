// What may stand in a message of bytes that came from a file. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace kvmesh::model {

// `text` with control characters and bytes above 0x7E escaped, cut after 100 bytes.
std::string Printable(absl::string_view text);

// For a file that is not what it should be: ": it is a Git LFS pointer, …" when its first bytes
// tell, else empty.
std::string LooksLike(absl::Span<const uint8_t> file);

}  // namespace kvmesh::model
