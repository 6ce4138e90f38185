#include "common/base/small_file.h"

#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace kvmesh {

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text;
  text.resize(kSmallFileBytesMax + 1);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  // A folder opens, but gives nothing.
  if (in.bad() || (text.empty() && !in.eof())) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path));
  }
  if (text.size() > kSmallFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is larger than ", kSmallFileBytesMax, " bytes"));
  }
  return text;
}

FileVersion FileVersionOf(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) return {};
  return {.inode = facts.st_ino,
          .size_bytes = static_cast<uint64_t>(facts.st_size),
          .modified_ns = int64_t{facts.st_mtim.tv_sec} * 1000000000 + facts.st_mtim.tv_nsec};
}

}  // namespace kvmesh
