#include "tests/testing/faulty_file_system.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace kvmesh::testing {
namespace {

class FaultyFile final : public blob::File {
 public:
  FaultyFile(FaultyFileSystem& files, std::string path, std::unique_ptr<blob::File> real)
      : files_(files), path_(std::move(path)), real_(std::move(real)) {}

  absl::StatusOr<uint64_t> WriteSome(uint64_t offset,
                                     absl::Span<const absl::string_view> parts) override {
    KVMESH_RETURN_IF_ERROR(files_.Ask("write", path_));
    const absl::string_view first = parts.front().substr(0, files_.transfer_max());
    if (first.size() < parts.front().size()) return real_->WriteSome(offset, {first});
    return real_->WriteSome(offset, parts);
  }
  absl::StatusOr<uint64_t> ReadSome(uint64_t offset, absl::Span<char> out) const override {
    KVMESH_RETURN_IF_ERROR(files_.Ask("read", path_));
    return real_->ReadSome(offset,
                           out.subspan(0, std::min<uint64_t>(out.size(), files_.transfer_max())));
  }
  absl::Status Allocate(uint64_t offset, uint64_t bytes) override {
    KVMESH_RETURN_IF_ERROR(files_.Ask("allocate", path_));
    return real_->Allocate(offset, bytes);
  }
  void PreferLargePages(uint64_t offset, uint64_t bytes) override {
    real_->PreferLargePages(offset, bytes);
  }
  absl::Status Truncate(uint64_t bytes) override {
    KVMESH_RETURN_IF_ERROR(files_.Ask("truncate", path_));
    return real_->Truncate(bytes);
  }
  absl::Status SyncData() override {
    KVMESH_RETURN_IF_ERROR(files_.Ask("sync", path_));
    return real_->SyncData();
  }
  void StartWriteback(uint64_t offset, uint64_t bytes) override {
    real_->StartWriteback(offset, bytes);
  }
  absl::StatusOr<uint64_t> Size() const override {
    KVMESH_RETURN_IF_ERROR(files_.Ask("size", path_));
    return real_->Size();
  }

 private:
  FaultyFileSystem& files_;
  const std::string path_;
  std::unique_ptr<blob::File> real_;
};

}  // namespace

void FaultyFileSystem::SetPlan(Plan plan) {
  MutexLock lock(&mutex_);
  plan_ = std::move(plan);
  operations_.clear();
}

std::vector<std::string> FaultyFileSystem::Operations() const {
  MutexLock lock(&mutex_);
  return operations_;
}

void FaultyFileSystem::SetHold(Hold hold) {
  MutexLock lock(&mutex_);
  hold_ = std::move(hold);
}

absl::Status FaultyFileSystem::Ask(const std::string& operation, const std::string& path) {
  Hold hold;
  {
    MutexLock lock(&mutex_);
    hold = hold_;
  }
  if (hold) hold(operation);
  MutexLock lock(&mutex_);
  operations_.push_back(operation);
  const int error = plan_ ? plan_(operation, path) : 0;
  return error == 0 ? absl::OkStatus() : blob::ErrnoStatus(error, operation, path);
}

absl::StatusOr<std::unique_ptr<blob::File>> FaultyFileSystem::Create(const std::string& path) {
  KVMESH_RETURN_IF_ERROR(Ask("create", path));
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<blob::File> file, real_->Create(path));
  return std::make_unique<FaultyFile>(*this, path, std::move(file));
}

absl::StatusOr<std::unique_ptr<blob::File>> FaultyFileSystem::Open(const std::string& path,
                                                                   bool writable) {
  KVMESH_RETURN_IF_ERROR(Ask("open", path));
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<blob::File> file, real_->Open(path, writable));
  return std::make_unique<FaultyFile>(*this, path, std::move(file));
}

absl::Status FaultyFileSystem::Link(const std::string& from, const std::string& to) {
  KVMESH_RETURN_IF_ERROR(Ask("link", to));
  return real_->Link(from, to);
}

absl::Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  KVMESH_RETURN_IF_ERROR(Ask("rename", from));
  return real_->Rename(from, to);
}

absl::Status FaultyFileSystem::Unlink(const std::string& path) {
  KVMESH_RETURN_IF_ERROR(Ask("unlink", path));
  return real_->Unlink(path);
}

absl::StatusOr<std::vector<blob::FolderEntry>> FaultyFileSystem::List(const std::string& path) {
  KVMESH_RETURN_IF_ERROR(Ask("list", path));
  return real_->List(path);
}

absl::StatusOr<blob::FreeSpace> FaultyFileSystem::SpaceOf(const std::string& path) {
  KVMESH_RETURN_IF_ERROR(Ask("statvfs", path));
  return real_->SpaceOf(path);
}

absl::Status FaultyFileSystem::SyncFolder(const std::string& path) {
  KVMESH_RETURN_IF_ERROR(Ask("sync_folder", path));
  return real_->SyncFolder(path);
}

}  // namespace kvmesh::testing
