#include "common/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace kvmesh::model {
namespace {

// The most that Linux maps when one page is touched: a whole large folio of the page cache.
constexpr size_t kMappedAtOnce = size_t{2} << 20;

absl::Status SystemError(int error, absl::string_view path, absl::string_view what) {
  absl::Status status = absl::ErrnoToStatus(error, absl::StrCat(path, ": ", what));
  if (error == ENOTDIR || error == ENAMETOOLONG) return absl::NotFoundError(status.message());
  if (absl::IsNotFound(status) || absl::IsPermissionDenied(status)) return status;
  return absl::UnavailableError(status.message());
}

// An open descriptor of a regular file, and its identity. O_NONBLOCK: a FIFO must not hold the
// caller up.
absl::StatusOr<int> OpenRegular(const std::string& path, FileIdentity* identity) {
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("a path holds a NUL character");
  }
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(errno, path, "cannot be opened");
  struct stat info = {};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return SystemError(error, path, "cannot be examined");
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  identity->path = path;
  identity->size = static_cast<uint64_t>(info.st_size);
  identity->mtime_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  identity->inode = info.st_ino;
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  FileIdentity identity;
  KVMESH_ASSIGN_OR_RETURN(const int fd, OpenRegular(path, &identity));
  const absl::Cleanup closer = [fd] { close(fd); };
  if (identity.size == 0) {  // mmap refuses an empty range
    return std::unique_ptr<MappedFile>(new MappedFile(nullptr, std::move(identity)));
  }
  void* data = mmap(nullptr, identity.size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return SystemError(errno, path, "cannot be mapped");
  return std::unique_ptr<MappedFile>(
      new MappedFile(static_cast<const uint8_t*>(data), std::move(identity)));
}

MappedFile::MappedFile(const uint8_t* data, FileIdentity identity)
    : data_(data), identity_(std::move(identity)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), identity_.size);
}

void MappedFile::ReleasePages(absl::Span<const uint8_t> part) const {
  if (part.empty()) return;
  const auto begin = static_cast<size_t>(part.data() - data_);
  const size_t first = begin - std::min(begin, kMappedAtOnce);
  const size_t end = std::min<size_t>(begin + part.size() + kMappedAtOnce, identity_.size);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t aligned = first / page * page;
  // Only a hint; pages that stay cost memory, not correctness.
  (void)madvise(const_cast<uint8_t*>(data_) + aligned, end - aligned, MADV_DONTNEED);
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, uint64_t bytes_max) {
  FileIdentity identity;
  KVMESH_ASSIGN_OR_RETURN(const int fd, OpenRegular(path, &identity));
  const absl::Cleanup closer = [fd] { close(fd); };
  if (identity.size > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", identity.size, " bytes; at most ", bytes_max, " are read"));
  }
  std::string content(identity.size, '\0');
  size_t filled = 0;
  while (filled < content.size()) {
    const ssize_t got = read(fd, content.data() + filled, content.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(errno, path, "cannot be read");
    if (got == 0) break;  // cut short since fstat
    filled += static_cast<size_t>(got);
  }
  content.resize(filled);
  return content;
}

}  // namespace kvmesh::model
