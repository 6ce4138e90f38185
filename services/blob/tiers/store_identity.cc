#include "services/blob/tiers/store_identity.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace kvmesh::blob {
namespace {

constexpr char kIdFile[] = "store_id";
constexpr char kIncarnationFile[] = "incarnation";
constexpr uint64_t kFileBytesMax = 128;

// Without the line's end. Nothing: there is no such file.
absl::StatusOr<std::optional<std::string>> ReadLine(FileSystem& files, const std::string& path) {
  const absl::StatusOr<std::unique_ptr<File>> file = files.Open(path, /*writable=*/false);
  if (absl::IsNotFound(file.status())) return std::optional<std::string>();
  KVMESH_RETURN_IF_ERROR(file.status());
  KVMESH_ASSIGN_OR_RETURN(const uint64_t size, (*file)->Size());
  std::string content(std::min(size, kFileBytesMax), '\0');
  KVMESH_RETURN_IF_ERROR(ReadAll(**file, 0, absl::MakeSpan(content)));
  if (!content.empty() && content.back() == '\n') content.pop_back();
  return std::optional<std::string>(std::move(content));
}

std::optional<Incarnation> ParseIncarnation(const std::string& line) {
  const std::vector<std::string> parts = absl::StrSplit(line, ' ');
  Incarnation incarnation;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &incarnation.number)) return std::nullopt;
  const auto id = IncarnationId::FromHex(parts[1], "incarnation");
  if (!id.ok()) return std::nullopt;
  incarnation.id = *id;
  return incarnation;
}

}  // namespace

absl::StatusOr<StoreIdentity> StoreIdentity::Open(FileSystem& files, const std::string& folder,
                                                  const StoreId& fresh) {
  StoreIdentity identity(files, folder);
  if (folder.empty()) {
    identity.id_ = fresh;
  } else {
    KVMESH_RETURN_IF_ERROR(identity.Load(fresh));
  }
  return identity;
}

absl::Status StoreIdentity::Load(const StoreId& fresh) {
  KVMESH_ASSIGN_OR_RETURN(const std::optional<std::string> id_line,
                          ReadLine(*files_, absl::StrCat(folder_, "/", kIdFile)));
  const auto id = StoreId::FromHex(id_line.value_or(""), kIdFile);
  id_ = id.ok() ? *id : fresh;
  if (id_line && !id.ok()) {
    complaints_.push_back(absl::StrCat(kIdFile, " was unreadable; the store has a new id"));
  }
  if (!id.ok()) KVMESH_RETURN_IF_ERROR(Replace(kIdFile, absl::StrCat(id_.ToHex(), "\n")));
  KVMESH_ASSIGN_OR_RETURN(const std::optional<std::string> incarnation_line,
                          ReadLine(*files_, absl::StrCat(folder_, "/", kIncarnationFile)));
  if (incarnation_line) seen_ = ParseIncarnation(*incarnation_line);
  if (incarnation_line && !seen_) {
    complaints_.push_back(
        absl::StrCat(kIncarnationFile, " was unreadable; the store obeys the next arbiter"));
  }
  return absl::OkStatus();
}

absl::Status StoreIdentity::Obey(const Incarnation& incarnation) {
  KVMESH_RETURN_IF_ERROR(CheckIncarnation(seen_, incarnation));
  if (seen_ == incarnation) return absl::OkStatus();
  if (!folder_.empty()) {
    KVMESH_RETURN_IF_ERROR(Replace(
        kIncarnationFile, absl::StrCat(incarnation.number, " ", incarnation.id.ToHex(), "\n")));
  }
  seen_ = incarnation;
  return absl::OkStatus();
}

absl::Status StoreIdentity::Replace(const std::string& name, const std::string& content) {
  const std::string path = absl::StrCat(folder_, "/", name);
  const std::string fresh = path + ".new";
  if (absl::Status left = files_->Unlink(fresh); !left.ok() && !absl::IsNotFound(left)) {
    return left;
  }
  {
    KVMESH_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_->Create(fresh));
    KVMESH_RETURN_IF_ERROR(WriteAll(*file, 0, {content}));
    KVMESH_RETURN_IF_ERROR(file->SyncData());
  }
  KVMESH_RETURN_IF_ERROR(files_->Rename(fresh, path));
  return files_->SyncFolder(folder_);
}

}  // namespace kvmesh::blob
