#include "services/blob/tiers/file_tier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/hex.h"
#include "common/base/status_macros.h"
#include "common/slab/format.h"

namespace kvmesh::blob {
namespace {

constexpr char kTemporaryPrefix[] = ".tmp-";
constexpr uint64_t kWritebackBytes = 8 << 20;
// File systems slow down, and other programs fail, when the last files are taken: a hundredth of
// all stays free, but no more than so many.
constexpr uint64_t kFilesKept = 1024;

// A file as a byte source; its size is read once, because a slab never grows.
class FileSource final : public slab::ByteSource {
 public:
  FileSource(std::unique_ptr<File> file, uint64_t size) : file_(std::move(file)), size_(size) {}
  uint64_t size() const override { return size_; }
  absl::Status ReadAt(uint64_t offset, absl::Span<char> out) const override {
    return ReadAll(*file_, offset, out);
  }

 private:
  std::unique_ptr<File> file_;
  const uint64_t size_;
};

}  // namespace

class FileTier::Write final : public SlabWrite {
 public:
  // `file_bytes` have been promised.
  Write(FileTier& tier, const SlabName& name, uint64_t file_bytes)
      : tier_(tier), name_(name), file_bytes_(file_bytes) {}
  ~Write() override {
    if (!temporary_.empty()) tier_.files_.Unlink(temporary_).IgnoreError();
    tier_.Settle(file_bytes_ - allocated_);
  }

  absl::Status Open(const std::string& temporary) {
    KVMESH_ASSIGN_OR_RETURN(file_, tier_.files_.Create(temporary));
    temporary_ = temporary;
    return AllocateUpTo(1);
  }

  absl::Status Append(absl::Span<const absl::string_view> parts) override {
    uint64_t end = written_;
    for (absl::string_view part : parts) end += part.size();
    if (end > file_bytes_) return absl::OutOfRangeError("more bytes than were announced");
    KVMESH_RETURN_IF_ERROR(AllocateUpTo(end));
    KVMESH_RETURN_IF_ERROR(WriteAll(*file_, written_, parts));
    written_ = end;
    // The medium works while the rest arrives, so that the sync at the end is short.
    if (written_ - flushed_ >= kWritebackBytes) {
      file_->StartWriteback(flushed_, written_ - flushed_);
      flushed_ = written_;
    }
    return absl::OkStatus();
  }

  absl::Status Publish() override {
    KVMESH_RETURN_IF_ERROR(file_->SyncData());
    const std::string path = tier_.PathOf(name_);
    KVMESH_RETURN_IF_ERROR(tier_.files_.Link(temporary_, path));
    if (absl::Status synced = tier_.files_.SyncFolder(tier_.SlabFolder(name_)); !synced.ok()) {
      // Whether the name would survive a power cut is unknown, so it must not be seen either.
      tier_.files_.Unlink(path).IgnoreError();
      return synced;
    }
    // The slab is published; a temporary name that stays is removed at the next start.
    if (tier_.files_.Unlink(temporary_).ok()) temporary_.clear();
    return absl::OkStatus();
  }

 private:
  // Whole steps, so that at least the first `end` bytes have their space.
  absl::Status AllocateUpTo(uint64_t end) {
    while (allocated_ < end) {
      const uint64_t step = std::min(file_bytes_ - allocated_, tier_.options_.allocate_step_bytes);
      KVMESH_RETURN_IF_ERROR(file_->Allocate(allocated_, step));
      allocated_ += step;
      tier_.Settle(step);
    }
    return absl::OkStatus();
  }

  FileTier& tier_;
  const SlabName name_;
  const uint64_t file_bytes_;
  std::string temporary_;  // empty: there is no such file
  std::unique_ptr<File> file_;
  uint64_t allocated_ = 0;
  uint64_t written_ = 0;
  uint64_t flushed_ = 0;
};

absl::StatusOr<std::unique_ptr<FileTier>> FileTier::Open(FileSystem& files,
                                                         const FileTierOptions& options) {
  std::unique_ptr<FileTier> tier(new FileTier(files, options));
  KVMESH_RETURN_IF_ERROR(files.MakeFolder(options.folder));
  KVMESH_ASSIGN_OR_RETURN(tier->lock_, files.Lock(options.folder + "/lock"));
  KVMESH_RETURN_IF_ERROR(files.MakeFolder(options.folder + "/quarantine"));
  KVMESH_RETURN_IF_ERROR(files.MakeFolder(options.folder + "/slabs"));
  for (int first = 0; first < 256; ++first) {
    const char byte = static_cast<char>(first);
    KVMESH_RETURN_IF_ERROR(files.MakeFolder(
        absl::StrCat(options.folder, "/slabs/", HexEncode(absl::string_view(&byte, 1)))));
  }
  KVMESH_RETURN_IF_ERROR(files.SyncFolder(options.folder + "/slabs"));
  KVMESH_RETURN_IF_ERROR(files.SyncFolder(options.folder));
  return tier;
}

std::string FileTier::SlabFolder(const SlabName& name) const {
  return absl::StrCat(options_.folder, "/slabs/", HexEncode(name.key.bytes().substr(0, 1)));
}

std::string FileTier::PathOf(const SlabName& name) const {
  return absl::StrCat(SlabFolder(name), "/", name.ToFileName());
}

absl::StatusOr<std::unique_ptr<SlabWrite>> FileTier::Create(const SlabName& name,
                                                            uint64_t file_bytes) {
  KVMESH_RETURN_IF_ERROR(Promise(file_bytes));
  auto write = std::make_unique<Write>(*this, name, file_bytes);
  // Unique in this process, and the lock keeps others out; Recover has removed older ones.
  KVMESH_RETURN_IF_ERROR(write->Open(
      absl::StrCat(SlabFolder(name), "/", kTemporaryPrefix, temporary_names_.fetch_add(1))));
  return write;
}

absl::Status FileTier::Promise(uint64_t file_bytes) {
  MutexLock lock(&mutex_);
  KVMESH_ASSIGN_OR_RETURN(const FreeSpace space, files_.SpaceOf(options_.folder));
  const ErrorInfo full{.reason = "MEDIUM_FULL"};
  if (space.bytes < promised_bytes_ || space.bytes - promised_bytes_ < file_bytes) {
    return WithErrorInfo(absl::ResourceExhaustedError(absl::StrCat(
                             "the slab has ", file_bytes, " bytes; the medium has ", space.bytes,
                             " left, of which ", promised_bytes_, " are promised")),
                         full);
  }
  const uint64_t files_kept = std::min(kFilesKept, space.files_max / 100);
  if (space.files_max > 0 && space.files <= files_kept) {
    return WithErrorInfo(
        absl::ResourceExhaustedError(absl::StrCat("the medium can hold ", space.files,
                                                  " more files; ", files_kept, " are kept free")),
        full);
  }
  promised_bytes_ += file_bytes;
  return absl::OkStatus();
}

void FileTier::Settle(uint64_t bytes) {
  MutexLock lock(&mutex_);
  promised_bytes_ -= bytes;
}

absl::StatusOr<std::unique_ptr<slab::ByteSource>> FileTier::Open(const SlabName& name) {
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                          files_.Open(PathOf(name), /*writable=*/false));
  KVMESH_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  return std::make_unique<FileSource>(std::move(file), size);
}

absl::Status FileTier::Remove(const SlabName& name) {
  const absl::Status unlinked = files_.Unlink(PathOf(name));
  return absl::IsNotFound(unlinked) ? absl::OkStatus() : unlinked;
}

absl::StatusOr<uint64_t> FileTier::Quarantine(const SlabName& name) {
  const std::string file_name = name.ToFileName();
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<slab::ByteSource> source, Open(name));
  const uint64_t bytes = source->size();
  MutexLock lock(&mutex_);
  KVMESH_RETURN_IF_ERROR(
      files_.Rename(PathOf(name), absl::StrCat(options_.folder, "/quarantine/", file_name)));
  std::erase_if(quarantine_, [&](const FolderEntry& entry) { return entry.name == file_name; });
  quarantine_.push_back({.name = file_name, .bytes = bytes, .is_file = true});
  KVMESH_RETURN_IF_ERROR(TrimQuarantine());
  uint64_t kept = 0;
  for (const FolderEntry& entry : quarantine_) kept += slab::AlignUp(entry.bytes);
  return kept;
}

absl::Status FileTier::TrimQuarantine() {
  uint64_t kept = 0;
  for (const FolderEntry& entry : quarantine_) kept += slab::AlignUp(entry.bytes);
  while (!quarantine_.empty() && (kept > options_.quarantine_bytes_max ||
                                  quarantine_.size() > options_.quarantine_files_max)) {
    absl::Status unlinked =
        files_.Unlink(absl::StrCat(options_.folder, "/quarantine/", quarantine_.front().name));
    if (!unlinked.ok() && !absl::IsNotFound(unlinked)) return unlinked;
    kept -= slab::AlignUp(quarantine_.front().bytes);
    quarantine_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status FileTier::WriteUse(const SlabName& name, uint32_t hit_count,
                                uint64_t last_used_time_s) {
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files_.Open(PathOf(name), /*writable=*/true));
  KVMESH_RETURN_IF_ERROR(WriteAll(*file, slab::kHitCountOffset, {slab::EncodeHitCount(hit_count)}));
  return WriteAll(*file, slab::kLastUsedOffset, {slab::EncodeLastUsed(last_used_time_s)});
}

absl::StatusOr<Recovered> FileTier::Recover() {
  Recovered recovered;
  for (int first = 0; first < 256; ++first) {
    const char byte = static_cast<char>(first);
    KVMESH_RETURN_IF_ERROR(RecoverFolder(HexEncode(absl::string_view(&byte, 1)), &recovered));
  }
  KVMESH_RETURN_IF_ERROR(RecoverQuarantine());
  return recovered;
}

absl::Status FileTier::RecoverFolder(const std::string& folder, Recovered* recovered) {
  const std::string path = absl::StrCat(options_.folder, "/slabs/", folder);
  KVMESH_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files_.List(path));
  for (const FolderEntry& entry : entries) {
    if (entry.is_file && absl::StartsWith(entry.name, kTemporaryPrefix)) {
      KVMESH_RETURN_IF_ERROR(files_.Unlink(absl::StrCat(path, "/", entry.name)));
      ++recovered->removed["temporary"];
      continue;
    }
    const absl::StatusOr<SlabName> name = SlabName::FromFileName(entry.name);
    if (!entry.is_file || !name.ok() || !absl::StartsWith(entry.name, folder)) {
      // Not ours to remove: nobody who writes slabs gives a file such a name.
      ++recovered->left_alone["foreign_name"];
      continue;
    }
    recovered->names.push_back(*name);
  }
  return absl::OkStatus();
}

absl::Status FileTier::RecoverQuarantine() {
  KVMESH_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries,
                          files_.List(options_.folder + "/quarantine"));
  MutexLock lock(&mutex_);
  for (const FolderEntry& entry : entries) {
    if (entry.is_file) quarantine_.push_back(entry);
  }
  return TrimQuarantine();
}

uint64_t FileTier::quarantined_bytes() const {
  MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const FolderEntry& entry : quarantine_) bytes += slab::AlignUp(entry.bytes);
  return bytes;
}

}  // namespace kvmesh::blob
