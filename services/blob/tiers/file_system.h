// The few operations that the file tiers need, so that a test can make any of them fail.
//
// Errors of all: NotFound (ENOENT), AlreadyExists (EEXIST), ResourceExhausted (ENOSPC, EDQUOT,
// EMFILE, ENFILE, ENOMEM: with reason MEDIUM_FULL or TOO_MANY_FILES), Unavailable (EIO and all
// others); operation, path and cause are in the message. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace kvmesh::blob {

// An open file; closed by its destructor.
class File {
 public:
  virtual ~File() = default;
  // May write less than all, never nothing: the caller goes on behind it.
  virtual absl::StatusOr<uint64_t> WriteSome(uint64_t offset,
                                             absl::Span<const absl::string_view> parts) = 0;
  // May read less than asked for; 0 at the file's end.
  virtual absl::StatusOr<uint64_t> ReadSome(uint64_t offset, absl::Span<char> out) const = 0;
  // Space for a range, so that writing it cannot run out of it.
  virtual absl::Status Allocate(uint64_t offset, uint64_t bytes) = 0;
  // To be called before Allocate of the same range, on a medium in memory: takes what it can of the
  // range in pages of 2 MiB, which cost a quarter as much to take, write, read and free as small
  // ones. A hint: without the room, or such pages, Allocate does it all.
  virtual void PreferLargePages(uint64_t offset, uint64_t bytes) = 0;
  // Cuts the file off.
  virtual absl::Status Truncate(uint64_t bytes) = 0;
  // Contents and size are on the medium.
  virtual absl::Status SyncData() = 0;
  // Starts writing a range back to the medium and does not wait; a hint.
  virtual void StartWriteback(uint64_t offset, uint64_t bytes) = 0;
  virtual absl::StatusOr<uint64_t> Size() const = 0;
};

struct FolderEntry {
  std::string name;
  uint64_t bytes = 0;
  bool is_file = false;
};

// What is left of the medium that holds a folder.
struct FreeSpace {
  uint64_t bytes = 0;
  uint64_t files = 0;      // how many more files it can name
  uint64_t files_max = 0;  // 0: it does not count them
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // A new file of mode 0600. AlreadyExists.
  virtual absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) = 0;
  // An existing file that is no symbolic link.
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, bool writable) = 0;
  // A second name of the file. AlreadyExists.
  virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Unlink(const std::string& path) = 0;
  // The folder's entries are on the medium.
  virtual absl::Status SyncFolder(const std::string& path) = 0;
  // Mode 0700; fine when it is there already (its mode is then made so).
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // Without "." and "..".
  virtual absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) = 0;
  virtual absl::StatusOr<FreeSpace> SpaceOf(const std::string& path) = 0;
  // Holds an exclusive lock as long as the file lives. FailedPrecondition: another process has it.
  virtual absl::StatusOr<std::unique_ptr<File>> Lock(const std::string& path) = 0;
};

// The real one.
std::unique_ptr<FileSystem> MakePosixFileSystem();

// What an errno means here; the messages of all implementations come from it.
absl::Status ErrnoStatus(int error, absl::string_view operation, absl::string_view path);

// All of `parts`, as many steps as it takes.
absl::Status WriteAll(File& file, uint64_t offset, absl::Span<const absl::string_view> parts);
// Unavailable: the file ends before.
absl::Status ReadAll(const File& file, uint64_t offset, absl::Span<char> out);

}  // namespace kvmesh::blob
