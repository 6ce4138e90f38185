#include "common/model/digest_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/model/json.h"

namespace kvmesh::model {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kCacheBytesMax = 4 << 20;
constexpr int64_t kSettledNs = 2'000'000'000;

std::string RealPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::weakly_canonical(path, error);
  return error ? path : real.string();
}

std::string UserCacheFolder() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && xdg[0] == '/') return absl::StrCat(xdg, "/kvmesh");
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return absl::StrCat(home, "/.cache/kvmesh");
  return "";
}

// One string that names exactly these files in this state.
std::string FilesKey(const std::vector<FileIdentity>& files) {
  Sha256 hash;
  for (const FileIdentity& file : files) {
    hash.UpdateU64(file.path.size()).Update(file.path);
    hash.UpdateU64(file.size).UpdateU64(static_cast<uint64_t>(file.mtime_ns)).UpdateU64(file.inode);
  }
  return hash.Digest().ToHex();
}

// The parts, canonical: Json objects keep their keys sorted.
std::string Checksum(const std::string& files_key, const Json& parts) {
  return Sha256Of(absl::StrCat("kvmesh digests 1\n", files_key, "\n", parts.dump())).ToHex();
}

bool WriteAll(int fd, absl::string_view content) {
  while (!content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    content.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool ReplaceFile(const std::string& path, absl::string_view content) {
  std::string temp = absl::StrCat(path, ".XXXXXX");
  const int fd = mkostemp(temp.data(), O_CLOEXEC);
  if (fd < 0) return false;
  // No fsync: it can take long on a busy disk, and what a power cut tears fails its checksum.
  const bool written = WriteAll(fd, content) && fchmod(fd, 0644) == 0;
  const bool closed = close(fd) == 0;
  if (written && closed && std::rename(temp.c_str(), path.c_str()) == 0) return true;
  unlink(temp.c_str());
  return false;
}

std::map<std::string, Sha256Digest> ReadFrom(const std::string& path,
                                             const std::string& files_key) {
  std::map<std::string, Sha256Digest> parts;
  const absl::StatusOr<std::string> content = ReadSmallFile(path, kCacheBytesMax);
  if (!content.ok()) return parts;
  const absl::StatusOr<Json> json = ParseJson(*content);
  if (!json.ok() || !json->is_object()) return parts;
  const auto found = json->find("parts");
  if (found == json->end() || !found->is_object()) return parts;
  // Checked before any of it is believed: a torn or edited file, and one for other files, fail
  // here.
  if (json->value("files", Json()) != Json(files_key) ||
      json->value("checksum", Json()) != Json(Checksum(files_key, *found))) {
    return parts;
  }
  for (const auto& [name, hex] : found->items()) {
    if (!hex.is_string()) return {};
    const auto digest = Sha256Digest::FromHex(hex.get<std::string>(), name);
    if (!digest.ok()) return {};
    parts.emplace(name, *digest);
  }
  return parts;
}

}  // namespace

DigestCache::DigestCache(const std::string& model_path, std::vector<FileIdentity> files)
    : files_(std::move(files)) {
  for (FileIdentity& file : files_) file.path = RealPath(file.path);
  const std::filesystem::path real = RealPath(model_path);
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(real, error);
  places_.push_back(is_folder ? (real / ".kvmesh-digests.json").string()
                              : (real.parent_path() / absl::StrCat(".", real.filename().string(),
                                                                   ".kvmesh-digests.json"))
                                    .string());
  const std::string folder = UserCacheFolder();
  if (!folder.empty()) {
    places_.push_back(absl::StrCat(folder, "/", Sha256Of(real.string()).ToHex(), ".json"));
  }
}

std::map<std::string, Sha256Digest> DigestCache::Read() const {
  const std::string key = FilesKey(files_);
  for (const std::string& place : places_) {
    std::map<std::string, Sha256Digest> parts = ReadFrom(place, key);
    if (!parts.empty()) return parts;
  }
  return {};
}

void DigestCache::Write(const std::map<std::string, Sha256Digest>& parts) const {
  const int64_t now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
  const bool young = std::any_of(files_.begin(), files_.end(), [&](const FileIdentity& file) {
    return file.mtime_ns > now_ns - kSettledNs;
  });
  if (young) return;
  Json parts_json = Json::object();
  for (const auto& [name, digest] : parts) parts_json[name] = digest.ToHex();
  const std::string key = FilesKey(files_);
  const std::string checksum = Checksum(key, parts_json);
  const Json json = {{"files", key}, {"parts", std::move(parts_json)}, {"checksum", checksum}};
  const std::string content = absl::StrCat(json.dump(1), "\n");
  for (const std::string& place : places_) {
    std::error_code error;
    if (place != places_.front()) {
      std::filesystem::create_directories(std::filesystem::path(place).parent_path(), error);
    }
    if (ReplaceFile(place, content)) return;
  }
}

}  // namespace kvmesh::model
