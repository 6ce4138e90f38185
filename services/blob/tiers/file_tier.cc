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

}  // namespace

// Somebody has a slab's file open, or is about to: once removed, it is not written again. To be
// made before the file is opened by its name.
class FileTier::Use {
 public:
  Use(FileTier& tier, const SlabName& name) : tier_(tier), name_(name) {
    MutexLock lock(&tier_.mutex_);
    ++tier_.uses_[name_];
  }
  ~Use() {
    MutexLock lock(&tier_.mutex_);
    const auto use = tier_.uses_.find(name_);
    if (--use->second == 0) tier_.uses_.erase(use);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  FileTier& tier_;
  const SlabName name_;
};

// A file as a byte source; its size is read once, because a slab never grows.
class FileTier::Source final : public slab::ByteSource {
 public:
  Source(FileTier& tier, const SlabName& name) : use_(tier, name) {}
  absl::Status Open(FileSystem& files, const std::string& path) {
    KVMESH_ASSIGN_OR_RETURN(file_, files.Open(path, /*writable=*/false));
    KVMESH_ASSIGN_OR_RETURN(size_, file_->Size());
    return absl::OkStatus();
  }
  uint64_t size() const override { return size_; }
  absl::Status ReadAt(uint64_t offset, absl::Span<char> out) const override {
    return ReadAll(*file_, offset, out);
  }

 private:
  const Use use_;  // ends after the file is closed
  std::unique_ptr<File> file_;
  uint64_t size_ = 0;
};

class FileTier::Write final : public SlabWrite {
 public:
  Write(FileTier& tier, const SlabName& name, uint64_t file_bytes)
      : tier_(tier), name_(name), file_bytes_(file_bytes) {}
  ~Write() override {
    if (!temporary_.empty()) tier_.files_.Unlink(temporary_).IgnoreError();
    tier_.Settle(promised_);
  }

  absl::Status Open(std::optional<SpareFile> spare) {
    if (spare) KVMESH_RETURN_IF_ERROR(TakeOver(*std::move(spare)));
    KVMESH_RETURN_IF_ERROR(tier_.Promise(file_bytes_ - allocated_));
    promised_ = file_bytes_ - allocated_;
    if (file_ == nullptr) {
      const std::string temporary = tier_.TemporaryPath(name_);
      KVMESH_ASSIGN_OR_RETURN(file_, tier_.files_.Create(temporary));
      temporary_ = temporary;
    }
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
  // Of all that it holds, nothing can be read before all of it has been written over.
  absl::Status TakeOver(SpareFile spare) {
    file_ = std::move(spare.file);
    temporary_ = std::move(spare.path);
    if (spare.bytes > file_bytes_) KVMESH_RETURN_IF_ERROR(file_->Truncate(file_bytes_));
    allocated_ = std::min(spare.bytes, file_bytes_);
    return absl::OkStatus();
  }

  // Whole steps, so that at least the first `end` bytes have their space.
  absl::Status AllocateUpTo(uint64_t end) {
    while (allocated_ < end) {
      const uint64_t step = std::min(file_bytes_ - allocated_, tier_.options_.allocate_step_bytes);
      if (tier_.options_.in_memory) file_->PreferLargePages(allocated_, step);
      KVMESH_RETURN_IF_ERROR(file_->Allocate(allocated_, step));
      allocated_ += step;
      promised_ -= step;
      tier_.Settle(step);
    }
    return absl::OkStatus();
  }

  FileTier& tier_;
  const SlabName name_;
  const uint64_t file_bytes_;
  std::string temporary_;  // empty: there is no such file
  std::unique_ptr<File> file_;
  uint64_t promised_ = 0;  // of the medium, and not yet taken
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

// Unique in this process, and the lock keeps others out; Recover has removed older ones.
std::string FileTier::TemporaryPath(const SlabName& name) {
  return absl::StrCat(SlabFolder(name), "/", kTemporaryPrefix, temporary_names_.fetch_add(1));
}

absl::StatusOr<std::unique_ptr<SlabWrite>> FileTier::Create(const SlabName& name,
                                                            uint64_t file_bytes,
                                                            uint64_t spare_bytes_max) {
  std::optional<SpareFile> spare = spares_.Take(file_bytes);
  spares_.Limit(spare_bytes_max);
  auto write = std::make_unique<Write>(*this, name, file_bytes);
  KVMESH_RETURN_IF_ERROR(write->Open(std::move(spare)));
  return write;
}

absl::Status FileTier::Promise(uint64_t file_bytes) {
  absl::Status promised = PromiseOfFreeSpace(file_bytes);
  if (promised.ok() || spares_.bytes() == 0) return promised;
  spares_.Limit(0);
  return PromiseOfFreeSpace(file_bytes);
}

absl::Status FileTier::PromiseOfFreeSpace(uint64_t file_bytes) {
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
  auto source = std::make_unique<Source>(*this, name);
  KVMESH_RETURN_IF_ERROR(source->Open(files_, PathOf(name)));
  return source;
}

absl::Status FileTier::Remove(const SlabName& name) {
  if (!options_.in_memory) {
    const absl::Status unlinked = files_.Unlink(PathOf(name));
    return absl::IsNotFound(unlinked) ? absl::OkStatus() : unlinked;
  }
  SpareFile spare{.path = TemporaryPath(name)};
  if (absl::Status renamed = files_.Rename(PathOf(name), spare.path); !renamed.ok()) {
    return absl::IsNotFound(renamed) ? absl::OkStatus() : renamed;
  }
  // Out of sight; whoever opened it before has said so.
  if (absl::Status opened = OpenUnused(name, &spare); opened.ok()) {
    spares_.Keep(std::move(spare));
  } else {
    files_.Unlink(spare.path).IgnoreError();  // a name that stays is removed at the next start
  }
  return absl::OkStatus();
}

absl::Status FileTier::OpenUnused(const SlabName& name, SpareFile* spare) {
  {
    MutexLock lock(&mutex_);
    if (uses_.contains(name)) return absl::FailedPreconditionError("somebody reads it");
  }
  KVMESH_ASSIGN_OR_RETURN(spare->file, files_.Open(spare->path, /*writable=*/true));
  KVMESH_ASSIGN_OR_RETURN(spare->bytes, spare->file->Size());
  return absl::OkStatus();
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
  const Use use(*this, name);
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
