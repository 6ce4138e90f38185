// A file layer that fails when a test says so: the real one beneath. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "services/blob/tiers/file_system.h"

namespace kvmesh::testing {

class FaultyFileSystem final : public blob::FileSystem {
 public:
  FaultyFileSystem() : real_(blob::MakePosixFileSystem()) {}

  // Asked before each operation ("create", "allocate", "write", "sync", "link", …): an errno, or 0
  // to let it happen.
  using Plan = std::function<int(const std::string& operation, const std::string& path)>;
  void SetPlan(Plan plan);
  // Called before each operation, on its thread, with no lock held: may wait.
  using Hold = std::function<void(const std::string& operation)>;
  void SetHold(Hold hold);
  // Reads and writes move at most so many bytes at a time.
  void SetTransferMax(uint64_t bytes) { transfer_max_ = bytes; }
  // Operations since the plan was set, in order.
  std::vector<std::string> Operations() const;

  absl::StatusOr<std::unique_ptr<blob::File>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<blob::File>> Open(const std::string& path, bool writable) override;
  absl::Status Link(const std::string& from, const std::string& to) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Unlink(const std::string& path) override;
  absl::Status SyncFolder(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override { return real_->MakeFolder(path); }
  absl::StatusOr<std::vector<blob::FolderEntry>> List(const std::string& path) override;
  absl::StatusOr<blob::FreeSpace> SpaceOf(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<blob::File>> Lock(const std::string& path) override {
    return real_->Lock(path);
  }

  // What the plan says; noted.
  absl::Status Ask(const std::string& operation, const std::string& path);
  uint64_t transfer_max() const { return transfer_max_; }

 private:
  std::unique_ptr<blob::FileSystem> real_;
  std::atomic<uint64_t> transfer_max_{UINT64_MAX};
  mutable Mutex mutex_;
  Plan plan_ ABSL_GUARDED_BY(mutex_);
  Hold hold_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> operations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::testing
