// A file mapped read-only. Immutable after Open; thread-safe. A file that somebody else cuts short
// while it is mapped ends the process with SIGBUS, as every mapping does: replace model files by
// renaming, not by rewriting.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kvmesh::model {

// What tells one state of a file from another.
struct FileIdentity {
  std::string path;
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  uint64_t inode = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

class MappedFile {
 public:
  // NotFound: no such file. InvalidArgument: not a regular file. PermissionDenied, Unavailable: the
  // system's reason.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  absl::Span<const uint8_t> bytes() const { return {data_, identity_.size}; }
  const FileIdentity& identity() const { return identity_; }

  // Lets go of the memory that reading `part`, of bytes(), has mapped: it is read again when
  // touched. What is in memory of the file around `part` goes too.
  void ReleasePages(absl::Span<const uint8_t> part) const;

 private:
  MappedFile(const uint8_t* data, FileIdentity identity);

  const uint8_t* data_;
  FileIdentity identity_;
};

// The whole of a small file. NotFound, PermissionDenied, Unavailable as above; InvalidArgument: not
// a regular file, or longer than bytes_max.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, uint64_t bytes_max);

}  // namespace kvmesh::model
