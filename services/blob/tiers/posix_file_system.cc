#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/status_macros.h"
#include "services/blob/tiers/file_system.h"

namespace kvmesh::blob {
namespace {

constexpr int kPartsPerWrite = 64;
constexpr uint64_t kLargePageBytes = 2 << 20;
constexpr uint64_t kSmallPageBytes = 4096;
constexpr int kMadviseCollapse = 25;  // MADV_COLLAPSE, Linux 6.1; older headers lack it

// Gives a range of a file in shared memory large pages, whatever its mount says of them. The
// mapping that this takes is never touched, so a full medium or a shorter file cannot be a SIGBUS.
void CollapsePages(int fd, uint64_t offset, uint64_t bytes) {
  const uint64_t reserved_bytes = bytes + kLargePageBytes;
  void* reserved =
      mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return;
  const auto misalignment = reinterpret_cast<uintptr_t>(reserved) % kLargePageBytes;
  char* aligned = static_cast<char*>(reserved) + (kLargePageBytes - misalignment);
  void* mapped = mmap(aligned, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                      static_cast<off_t>(offset));
  if (mapped != MAP_FAILED) madvise(mapped, bytes, kMadviseCollapse);
  munmap(reserved, reserved_bytes);
}

class PosixFile final : public File {
 public:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixFile() override { close(fd_); }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  absl::StatusOr<uint64_t> WriteSome(uint64_t offset,
                                     absl::Span<const absl::string_view> parts) override {
    std::array<iovec, kPartsPerWrite> vectors;
    const int count = static_cast<int>(std::min<size_t>(parts.size(), vectors.size()));
    for (int i = 0; i < count; ++i) {
      vectors[i] = {.iov_base = const_cast<char*>(parts[i].data()), .iov_len = parts[i].size()};
    }
    ssize_t written = 0;
    do {
      written = pwritev(fd_, vectors.data(), count, static_cast<off_t>(offset));
    } while (written < 0 && errno == EINTR);
    if (written < 0) return ErrnoStatus(errno, "write", path_);
    return static_cast<uint64_t>(written);
  }

  absl::StatusOr<uint64_t> ReadSome(uint64_t offset, absl::Span<char> out) const override {
    ssize_t got = 0;
    do {
      got = pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    } while (got < 0 && errno == EINTR);
    if (got < 0) return ErrnoStatus(errno, "read", path_);
    return static_cast<uint64_t>(got);
  }

  absl::Status Allocate(uint64_t offset, uint64_t bytes) override {
    int error = 0;
    do {
      error =
          fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (error == EINTR);
    // A file system without it (NFS, FUSE) still says ENOSPC when it is written to.
    if (error == 0 || error == EOPNOTSUPP) return absl::OkStatus();
    return ErrnoStatus(error, "allocate", path_);
  }

  void PreferLargePages(uint64_t offset, uint64_t bytes) override {
    const uint64_t begin = (offset + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
    const uint64_t end = (offset + bytes) / kLargePageBytes * kLargePageBytes;
    if (begin >= end) return;
    // The file reaches over each large page, and has one small page of it to be collapsed.
    for (uint64_t at = begin; at < end; at += kLargePageBytes) {
      const auto last = static_cast<off_t>(at + kLargePageBytes - kSmallPageBytes);
      if (fallocate(fd_, 0, last, kSmallPageBytes) != 0) return;
    }
    CollapsePages(fd_, begin, end - begin);
  }

  absl::Status Truncate(uint64_t bytes) override {
    if (ftruncate(fd_, static_cast<off_t>(bytes)) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "truncate", path_);
  }

  absl::Status SyncData() override {
    if (fdatasync(fd_) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "sync", path_);
  }

  void StartWriteback(uint64_t offset, uint64_t bytes) override {
    sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                    SYNC_FILE_RANGE_WRITE);
  }

  absl::StatusOr<uint64_t> Size() const override {
    struct stat info {};
    if (fstat(fd_, &info) != 0) return ErrnoStatus(errno, "stat", path_);
    return static_cast<uint64_t>(info.st_size);
  }

  int fd() const { return fd_; }

 private:
  const int fd_;
  const std::string path_;
};

class PosixFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    return OpenWith(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, "create");
  }
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, bool writable) override {
    return OpenWith(path, (writable ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK, "open");
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    return link(from.c_str(), to.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "link", to);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "rename", from);
  }
  absl::Status Unlink(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "unlink", path);
  }
  absl::Status SyncFolder(const std::string& path) override {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, "open", path);
    absl::Status status = fsync(fd) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "sync", path);
    close(fd);
    return status;
  }
  absl::Status MakeFolder(const std::string& path) override {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, "mkdir", path);
    return chmod(path.c_str(), 0700) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "chmod", path);
  }
  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) override;
  absl::StatusOr<FreeSpace> SpaceOf(const std::string& path) override {
    struct statvfs space {};
    if (statvfs(path.c_str(), &space) != 0) return ErrnoStatus(errno, "statvfs", path);
    return FreeSpace{.bytes = uint64_t{space.f_bavail} * space.f_frsize,
                     .files = space.f_favail,
                     .files_max = space.f_files};
  }
  absl::StatusOr<std::unique_ptr<File>> Lock(const std::string& path) override;

 private:
  static absl::StatusOr<std::unique_ptr<File>> OpenWith(const std::string& path, int flags,
                                                        absl::string_view operation) {
    const int fd = open(path.c_str(), flags | O_CLOEXEC, 0600);
    if (fd < 0) return ErrnoStatus(errno, operation, path);
    return std::make_unique<PosixFile>(fd, path);
  }
};

absl::StatusOr<std::vector<FolderEntry>> PosixFileSystem::List(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  if (folder == nullptr) return ErrnoStatus(errno, "list", path);
  std::vector<FolderEntry> entries;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr) break;
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    struct stat info {};
    if (fstatat(dirfd(folder.get()), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    entries.push_back({.name = entry->d_name,
                       .bytes = static_cast<uint64_t>(info.st_size),
                       .is_file = S_ISREG(info.st_mode)});
  }
  if (errno != 0) return ErrnoStatus(errno, "list", path);
  return entries;
}

absl::StatusOr<std::unique_ptr<File>> PosixFileSystem::Lock(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  auto file = std::make_unique<PosixFile>(fd, path);
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "lock", path);
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is locked: another process uses this data directory"));
}

}  // namespace

std::unique_ptr<FileSystem> MakePosixFileSystem() {
  return std::make_unique<PosixFileSystem>();
}

absl::Status ErrnoStatus(int error, absl::string_view operation, absl::string_view path) {
  const std::string message = absl::StrCat(operation, " ", path, ": ", strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
      return WithErrorInfo(absl::ResourceExhaustedError(message),
                           ErrorInfo{.reason = "MEDIUM_FULL"});
    case EMFILE:
    case ENFILE:
      return WithErrorInfo(absl::ResourceExhaustedError(message),
                           ErrorInfo{.reason = "TOO_MANY_FILES"});
    default:
      return absl::UnavailableError(message);
  }
}

absl::Status WriteAll(File& file, uint64_t offset, absl::Span<const absl::string_view> parts) {
  std::vector<absl::string_view> left(parts.begin(), parts.end());
  size_t next = 0;
  while (true) {
    while (next < left.size() && left[next].empty()) ++next;
    if (next == left.size()) return absl::OkStatus();
    KVMESH_ASSIGN_OR_RETURN(uint64_t written,
                            file.WriteSome(offset, absl::MakeConstSpan(left).subspan(next)));
    if (written == 0) return absl::UnavailableError("a write took no byte");
    offset += written;
    while (written > 0) {
      const uint64_t step = std::min<uint64_t>(written, left[next].size());
      left[next].remove_prefix(step);
      written -= step;
      if (left[next].empty()) ++next;
    }
  }
}

absl::Status ReadAll(const File& file, uint64_t offset, absl::Span<char> out) {
  while (!out.empty()) {
    KVMESH_ASSIGN_OR_RETURN(const uint64_t got, file.ReadSome(offset, out));
    if (got == 0) return absl::UnavailableError("the file ends early");
    offset += got;
    out.remove_prefix(got);
  }
  return absl::OkStatus();
}

}  // namespace kvmesh::blob
