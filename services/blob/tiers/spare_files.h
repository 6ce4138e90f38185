// Files of removed slabs on a medium in memory, kept to be written again: fresh pages cost more
// than all else that a put does. Each has one name, a temporary one, so that a start removes what a
// dead process kept.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "services/blob/tiers/file_system.h"

namespace kvmesh::blob {

struct SpareFile {
  std::string path;
  std::unique_ptr<File> file;
  uint64_t bytes = 0;
};

class SpareFiles {
 public:
  explicit SpareFiles(FileSystem& files) : files_(files) {}
  // Removes them all.
  ~SpareFiles() { Limit(0); }
  SpareFiles(const SpareFiles&) = delete;
  SpareFiles& operator=(const SpareFiles&) = delete;

  // Small files are not worth it, and beyond a number the smallest go: those are removed.
  void Keep(SpareFile spare);
  // One for a file of `bytes`: the smallest that holds them and is not more than twice as large,
  // else the largest that is smaller; else none.
  std::optional<SpareFile> Take(uint64_t bytes);
  // The smallest go until the rest takes at most so much.
  void Limit(uint64_t bytes_max);
  uint64_t bytes() const;

 private:
  using BySize = std::multimap<uint64_t, SpareFile>;
  SpareFile Remove(BySize::iterator at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unlink(SpareFile spare);

  FileSystem& files_;
  mutable Mutex mutex_;
  BySize spares_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // in whole pages
};

}  // namespace kvmesh::blob
