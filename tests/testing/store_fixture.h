// A slab store of any tier in a folder of its own, and the steps that most tests take with one.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "services/blob/tiers/file_tier.h"
#include "services/blob/tiers/slab_store.h"
#include "tests/testing/random_slab.h"

namespace kvmesh::testing {

// A new folder on the medium of the tier ("ram_file": /dev/shm); removed with all in it.
class TempFolder {
 public:
  explicit TempFolder(const std::string& tier = "disk");
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  // Every regular file, by its path below the folder, sorted; without the lock.
  std::vector<std::string> Files() const;

 private:
  std::string path_;
};

// Remembers what it was told.
class RecordedEvents final : public blob::StoreEvents {
 public:
  void OnPut(const blob::PutResult& put) override;
  void OnRemoved(const blob::SlabName& name) override;
  void OnQuarantined(const blob::SlabName& name, const absl::Status& why) override;
  std::vector<std::string> Take();

 private:
  Mutex mutex_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<blob::SlabStore>> OpenStore(const std::string& tier,
                                                           const std::string& folder,
                                                           const blob::StoreOptions& options,
                                                           blob::FileSystem& files,
                                                           blob::StoreEvents& events);

blob::PutHeader HeaderOf(const slab::SlabMeta& meta);
// In chunks of `chunk_bytes`.
absl::StatusOr<blob::PutResult> PutSlab(blob::SlabStore& store, const RandomSlab& slab,
                                        size_t chunk_bytes = 64 << 10);
absl::StatusOr<std::string> GetSlab(blob::SlabStore& store, const blob::SlabName& name,
                                    const blob::Selection& selection = {});
// Removed, waiting for readers at most ten seconds.
absl::StatusOr<bool> DeleteSlab(blob::SlabStore& store, const blob::SlabName& name);

}  // namespace kvmesh::testing
