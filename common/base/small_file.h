// Files of settings and credentials: read whole, and read again when they change.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace kvmesh {

constexpr size_t kSmallFileBytesMax = 1 << 20;

// NotFound: it cannot be read. InvalidArgument: larger than kSmallFileBytesMax. Both name the path.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

// What changes when a file's content does, also when another file takes its name. All zero: there
// is none.
struct FileVersion {
  uint64_t inode = 0;
  uint64_t size_bytes = 0;
  int64_t modified_ns = 0;
  friend bool operator==(const FileVersion&, const FileVersion&) = default;
};
FileVersion FileVersionOf(const std::string& path);

}  // namespace kvmesh
