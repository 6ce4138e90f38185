#include "services/shard/engine/weights_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/slab/crc32c.h"

namespace kvmesh::shard {
namespace {

constexpr absl::string_view kMagic = "KVMPACKD";
constexpr size_t kNumericsBytes = 32;
constexpr size_t kReadBytes = size_t{4} << 20;  // of one task

absl::Status SystemError(const std::string& path, absl::string_view what) {
  const int error = errno;
  const std::string message = absl::StrCat(path, ": ", what, ": ", strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

size_t RoundUp(size_t bytes) {
  return (bytes + WeightArena::kAlignment - 1) / WeightArena::kAlignment * WeightArena::kAlignment;
}

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Where each matrix lies, and where the file ends.
struct Places {
  std::vector<uint64_t> offsets;
  uint64_t end = 0;
};

size_t HeaderBytes(const WeightsFileKey& key) {
  return 88 + key.matrices.size() * 40 + sizeof(uint32_t);
}

Places PlacesOf(const WeightsFileKey& key) {
  Places places = {.end = RoundUp(HeaderBytes(key))};
  places.offsets.reserve(key.matrices.size());
  for (const WeightsFileKey::Matrix& matrix : key.matrices) {
    places.offsets.push_back(places.end);
    places.end += RoundUp(PackedMatrix::PackedBytes(matrix.type, matrix.rows, matrix.columns));
  }
  return places;
}

// Without the matrices' checksums, which are zero here, and the header's own.
std::string HeaderWithoutChecksums(const WeightsFileKey& key, const Places& places) {
  std::string header(kMagic);
  Append(header, kWeightsFileVersion);
  Append(header, static_cast<uint32_t>(key.matrices.size()));
  header.append(key.digest.bytes().data(), key.digest.bytes().size());
  std::string numerics = key.numerics_id;
  numerics.resize(kNumericsBytes, '\0');
  header += numerics;
  Append(header, places.end);
  for (size_t i = 0; i < key.matrices.size(); ++i) {
    Append(header, static_cast<uint32_t>(key.matrices[i].type));
    Append(header, key.matrices[i].rope_head_dim);
    Append(header, key.matrices[i].rows);
    Append(header, key.matrices[i].columns);
    Append(header, places.offsets[i]);
    Append(header, uint64_t{0});
  }
  return header;
}

// Where the i-th matrix's checksum stands in the header.
size_t ChecksumAt(size_t matrix) {
  return 88 + matrix * 40 + 32;
}

absl::string_view BytesOf(const PackedMatrix& matrix) {
  return {reinterpret_cast<const char*>(matrix.packed()), matrix.bytes()};
}

// False: a failure or the end of the file.
bool ReadAll(int fd, char* out, size_t bytes, uint64_t offset) {
  while (bytes > 0) {
    const ssize_t got = pread(fd, out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out += got;
    bytes -= static_cast<size_t>(got);
    offset += static_cast<uint64_t>(got);
  }
  return true;
}

bool WriteAll(int fd, absl::string_view bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return true;
}

// The checksums of the matrices, from a header that is whole and for `key`.
absl::StatusOr<std::vector<uint32_t>> CheckHeader(const std::string& path, int fd,
                                                  const WeightsFileKey& key, const Places& places) {
  const auto refuse = [&path](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(path, ": ", what));
  };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return SystemError(path, "cannot be looked at");
  if (!S_ISREG(info.st_mode)) return refuse("it is no regular file");
  std::string header(HeaderBytes(key), '\0');
  if (static_cast<uint64_t>(info.st_size) < header.size() ||
      !ReadAll(fd, header.data(), header.size(), 0)) {
    return refuse(absl::StrCat(info.st_size, " bytes are no header of ", header.size()));
  }
  if (absl::string_view(header).substr(0, kMagic.size()) != kMagic) {
    return refuse("it holds no packed weights");
  }
  uint32_t version = 0;
  std::memcpy(&version, header.data() + kMagic.size(), sizeof(version));
  if (version != kWeightsFileVersion) {
    return refuse(absl::StrCat("version ", version, ", not ", kWeightsFileVersion));
  }
  uint32_t crc = 0;
  const size_t crc_at = header.size() - sizeof(crc);
  std::memcpy(&crc, header.data() + crc_at, sizeof(crc));
  if (slab::Crc32c(absl::string_view(header).substr(0, crc_at)) != crc) {
    return refuse("the checksum of its header differs");
  }
  std::vector<uint32_t> checksums(key.matrices.size());
  for (size_t i = 0; i < checksums.size(); ++i) {
    std::memcpy(&checksums[i], header.data() + ChecksumAt(i), sizeof(uint32_t));
    std::memset(header.data() + ChecksumAt(i), 0, sizeof(uint32_t));
  }
  if (absl::string_view(header).substr(0, crc_at) != HeaderWithoutChecksums(key, places)) {
    return refuse("it is for other weights or another numerics id");
  }
  if (static_cast<uint64_t>(info.st_size) != places.end) {
    return refuse(absl::StrCat(info.st_size, " bytes, not ", places.end));
  }
  return checksums;
}

// Reads one matrix on all threads; the checksum of its pieces together.
absl::Status ReadMatrix(const std::string& path, int fd, uint64_t offset, uint32_t checksum,
                        ComputePool& pool, char* out, size_t bytes) {
  const size_t pieces = (bytes + kReadBytes - 1) / kReadBytes;
  std::vector<uint32_t> crcs(pieces);
  std::atomic<bool> failed = false;
  const auto piece_bytes = [&](size_t piece) {
    return std::min(kReadBytes, bytes - piece * kReadBytes);
  };
  pool.Run(pieces, [&](size_t piece, uint32_t worker) {
    char* start = out + piece * kReadBytes;
    if (!ReadAll(fd, start, piece_bytes(piece), offset + piece * kReadBytes)) failed = true;
    crcs[piece] = slab::Crc32c({start, piece_bytes(piece)});
  });
  if (failed) return absl::DataLossError(absl::StrCat(path, ": it cannot be read to its end"));
  uint32_t crc = crcs[0];
  for (size_t piece = 1; piece < pieces; ++piece) {
    crc = slab::CombineCrc32c(crc, crcs[piece], piece_bytes(piece));
  }
  if (crc != checksum) {
    return absl::DataLossError(absl::StrCat(path, ": the checksum of weights differs"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PackedMatrix>> ReadMatrices(const std::string& path, int fd,
                                                       const WeightsFileKey& key,
                                                       const Places& places,
                                                       absl::Span<const uint32_t> checksums,
                                                       ComputePool& pool, WeightArena& arena) {
  std::vector<PackedMatrix> matrices;
  matrices.reserve(key.matrices.size());
  for (size_t i = 0; i < key.matrices.size(); ++i) {
    const WeightsFileKey::Matrix& matrix = key.matrices[i];
    const size_t bytes = PackedMatrix::PackedBytes(matrix.type, matrix.rows, matrix.columns);
    KVMESH_ASSIGN_OR_RETURN(std::shared_ptr<uint8_t> packed, arena.Allocate(bytes));
    KVMESH_RETURN_IF_ERROR(ReadMatrix(path, fd, places.offsets[i], checksums[i], pool,
                                      reinterpret_cast<char*>(packed.get()), bytes));
    matrices.push_back(
        PackedMatrix::FromPacked(matrix.type, matrix.rows, matrix.columns, std::move(packed)));
  }
  return matrices;
}

absl::Status SyncFolder(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError(folder, "cannot be opened");
  const absl::Cleanup closer = [fd] { close(fd); };
  return fsync(fd) == 0 ? absl::OkStatus() : SystemError(folder, "cannot be synced");
}

}  // namespace

std::string WeightsFilePath(const std::string& folder, const WeightsFileKey& key) {
  return absl::StrCat(folder, "/", key.digest.ToHex(), "-", key.numerics_id, ".kvmweights");
}

absl::StatusOr<std::vector<PackedMatrix>> ReadWeightsFile(const std::string& path,
                                                          const WeightsFileKey& key,
                                                          ComputePool& pool, WeightArena& arena) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(path, "cannot be opened");
  const absl::Cleanup closer = [fd] { close(fd); };
  const Places places = PlacesOf(key);
  KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> checksums,
                          CheckHeader(path, fd, key, places));
  const WeightArena before = arena;
  absl::StatusOr<std::vector<PackedMatrix>> matrices =
      ReadMatrices(path, fd, key, places, checksums, pool, arena);
  if (!matrices.ok()) arena = before;  // what was read of it is of no use
  return matrices;
}

absl::Status WriteWeightsFile(const std::string& path, const WeightsFileKey& key,
                              absl::Span<const PackedMatrix> matrices) {
  std::error_code ignored;  // what matters of it shows when the file is made
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const Places places = PlacesOf(key);
  std::string header = HeaderWithoutChecksums(key, places);
  for (size_t i = 0; i < matrices.size(); ++i) {
    const uint32_t crc = slab::Crc32c(BytesOf(matrices[i]));
    std::memcpy(header.data() + ChecksumAt(i), &crc, sizeof(crc));
  }
  Append(header, slab::Crc32c(header));

  std::string temp = absl::StrCat(path, ".XXXXXX");
  const int fd = mkostemp(temp.data(), O_CLOEXEC);
  if (fd < 0) return SystemError(temp, "cannot be made");
  absl::Cleanup remover = [&temp] { unlink(temp.c_str()); };
  bool written = ftruncate(fd, static_cast<off_t>(places.end)) == 0 && WriteAll(fd, header, 0);
  for (size_t i = 0; written && i < matrices.size(); ++i) {
    written = WriteAll(fd, BytesOf(matrices[i]), places.offsets[i]);
  }
  written = written && fchmod(fd, 0644) == 0 && fsync(fd) == 0;
  const absl::Status status = written ? absl::OkStatus() : SystemError(temp, "cannot be written");
  close(fd);
  KVMESH_RETURN_IF_ERROR(status);
  if (std::rename(temp.c_str(), path.c_str()) != 0) return SystemError(path, "cannot be replaced");
  std::move(remover).Cancel();
  return SyncFolder(path);
}

}  // namespace kvmesh::shard
