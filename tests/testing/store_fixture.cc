#include "tests/testing/store_fixture.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hex.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "services/blob/tiers/ram_tier.h"

namespace kvmesh::testing {

TempFolder::TempFolder(const std::string& tier) {
  const std::string root =
      tier == "ram_file" ? "/dev/shm" : std::filesystem::temp_directory_path().string();
  path_ = absl::StrCat(root, "/kvmesh-test-", RandomId<InstanceId>().ToHex());
  std::filesystem::create_directory(path_);
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> TempFolder::Files() const {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
    if (!entry.is_regular_file() || entry.path().filename() == "lock") continue;
    files.push_back(entry.path().string().substr(path_.size() + 1));
  }
  std::sort(files.begin(), files.end());
  return files;
}

void RecordedEvents::OnPut(const blob::PutResult& put) {
  MutexLock lock(&mutex_);
  events_.push_back(absl::StrCat(put.adopted ? "adopted " : "put ", put.info.name.ToFileName()));
}

void RecordedEvents::OnRemoved(const blob::SlabName& name) {
  MutexLock lock(&mutex_);
  events_.push_back("removed " + name.ToFileName());
}

void RecordedEvents::OnQuarantined(const blob::SlabName& name, const absl::Status& why) {
  MutexLock lock(&mutex_);
  events_.push_back("quarantined " + name.ToFileName());
}

std::vector<std::string> RecordedEvents::Take() {
  MutexLock lock(&mutex_);
  return std::exchange(events_, {});
}

absl::StatusOr<std::unique_ptr<blob::SlabStore>> OpenStore(const std::string& tier,
                                                           const std::string& folder,
                                                           const blob::StoreOptions& options,
                                                           blob::FileSystem& files,
                                                           blob::StoreEvents& events) {
  if (tier == "ram") {
    return blob::SlabStore::Open(options, std::make_unique<blob::RamTier>(), events);
  }
  blob::FileTierOptions file_tier{.folder = folder, .quarantine_bytes_max = 8 << 20};
  if (tier == "ram_file") {
    file_tier.in_memory = true;
    file_tier.allocate_step_bytes = 64 << 10;
  }
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<blob::Tier> opened,
                          blob::FileTier::Open(files, file_tier));
  return blob::SlabStore::Open(options, std::move(opened), events);
}

blob::PutHeader HeaderOf(const slab::SlabMeta& meta) {
  return {.name = blob::NameOf(meta),
          .file_bytes = meta.file_bytes(),
          .tokens_sha256 = meta.tokens_sha256,
          .payload_crc32c = meta.payload_crc32c()};
}

absl::StatusOr<blob::PutResult> PutSlab(blob::SlabStore& store, const RandomSlab& slab,
                                        size_t chunk_bytes) {
  KVMESH_ASSIGN_OR_RETURN(blob::SlabStore::BegunPut begun, store.BeginPut(HeaderOf(slab.meta)));
  if (begun.adopted) return *begun.adopted;
  const absl::string_view bytes = slab.bytes;
  for (size_t at = 0; at < bytes.size(); at += chunk_bytes) {
    const absl::string_view chunk = bytes.substr(at, chunk_bytes);
    const size_t cut = chunk.size() / 3;
    KVMESH_RETURN_IF_ERROR(begun.put->Append({chunk.substr(0, cut), chunk.substr(cut)}));
  }
  return begun.put->Finish();
}

absl::StatusOr<std::string> GetSlab(blob::SlabStore& store, const blob::SlabName& name,
                                    const blob::Selection& selection) {
  KVMESH_ASSIGN_OR_RETURN(const std::unique_ptr<blob::OpenGet> get,
                          store.BeginGet(name, selection));
  std::string bytes;
  while (get->next_bytes() > 0) {
    std::string chunk(get->next_bytes(), '\0');
    KVMESH_RETURN_IF_ERROR(get->ReadNext(absl::MakeSpan(chunk)));
    bytes += chunk;
  }
  return bytes;
}

absl::StatusOr<bool> DeleteSlab(blob::SlabStore& store, const blob::SlabName& name) {
  // Shared with the callback, which may come after the wait was given up.
  auto done = std::make_shared<std::promise<absl::StatusOr<bool>>>();
  std::future<absl::StatusOr<bool>> removed = done->get_future();
  store.Delete(name, [done](const absl::StatusOr<bool>& result) { done->set_value(result); });
  if (removed.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
    return absl::DeadlineExceededError("no answer to a delete");
  }
  return removed.get();
}

}  // namespace kvmesh::testing
