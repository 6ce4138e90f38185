// Slabs as files under one folder, for the tiers ram_file (/dev/shm) and disk:
//
//   lock             held by the process that uses the folder
//   slabs/<2 hex>/   slabs by the first two digits of their key; ".tmp-…" while they are written
//   quarantine/      bad slabs, the newest few
//
// Publish: temporary name in the same folder, write, sync, link, sync the folder, unlink the
// temporary name. A crash between any two steps leaves a temporary name, the slab, or both. In
// memory a removed slab's file is renamed to a temporary name and written again by a later put.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "services/blob/tiers/file_system.h"
#include "services/blob/tiers/spare_files.h"
#include "services/blob/tiers/tier.h"

namespace kvmesh::blob {

struct FileTierOptions {
  std::string folder;
  // Bad slabs kept to be looked at; beyond, the oldest go.
  uint64_t quarantine_bytes_max = 0;
  uint32_t quarantine_files_max = 16;
  // A file's space is taken in steps of so many bytes, each before it is written. On /dev/shm that
  // costs as much as writing: taken at once, it would make the sender wait.
  uint64_t allocate_step_bytes = UINT64_MAX;
  // The medium is memory: it is taken in large pages where it can be, and files of removed slabs
  // are written again.
  bool in_memory = false;
};

class FileTier final : public Tier {
 public:
  // Makes the folders and takes the lock. FailedPrecondition: another process has it. Else the
  // file system's errors. `files` must outlive the tier.
  static absl::StatusOr<std::unique_ptr<FileTier>> Open(FileSystem& files,
                                                        const FileTierOptions& options);

  absl::StatusOr<std::unique_ptr<SlabWrite>> Create(const SlabName& name, uint64_t file_bytes,
                                                    uint64_t spare_bytes_max) override;
  void DropSpare() override { spares_.Limit(0); }
  absl::StatusOr<std::unique_ptr<slab::ByteSource>> Open(const SlabName& name) override;
  absl::Status Remove(const SlabName& name) override;
  absl::StatusOr<uint64_t> Quarantine(const SlabName& name) override;
  absl::Status WriteUse(const SlabName& name, uint32_t hit_count,
                        uint64_t last_used_time_s) override;
  absl::StatusOr<Recovered> Recover() override;
  uint64_t quarantined_bytes() const override;

  std::string PathOf(const SlabName& name) const;

 private:
  class Write;
  class Source;
  class Use;

  FileTier(FileSystem& files, const FileTierOptions& options)
      : files_(files), options_(options), spares_(files) {}
  std::string SlabFolder(const SlabName& name) const;
  std::string TemporaryPath(const SlabName& name);
  absl::Status RecoverFolder(const std::string& folder, Recovered* recovered);
  absl::Status RecoverQuarantine();
  absl::Status TrimQuarantine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The file of a removed slab, to be written again. FailedPrecondition: somebody has it open.
  absl::Status OpenUnused(const SlabName& name, SpareFile* spare);
  // Whether the medium has room for a file besides those that are being written.
  // ResourceExhausted MEDIUM_FULL: it has not. Each success is followed by Settle of all its bytes.
  absl::Status Promise(uint64_t file_bytes);
  absl::Status PromiseOfFreeSpace(uint64_t file_bytes);
  // So many promised bytes have been taken, or are not needed.
  void Settle(uint64_t bytes);

  FileSystem& files_;
  const FileTierOptions options_;
  std::unique_ptr<File> lock_;
  std::atomic<uint64_t> temporary_names_{0};
  SpareFiles spares_;

  mutable Mutex mutex_;
  std::deque<FolderEntry> quarantine_ ABSL_GUARDED_BY(mutex_);  // oldest first
  uint64_t promised_bytes_ ABSL_GUARDED_BY(mutex_) = 0;         // to open writes, and not yet taken
  std::map<SlabName, uint32_t> uses_ ABSL_GUARDED_BY(mutex_);   // how many have a slab's file open
};

}  // namespace kvmesh::blob
