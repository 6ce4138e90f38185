// `slab inspect`: one slab, from a file or from a store.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/rpc/blob_client.h"
#include "common/slab/reader.h"
#include "common/slab/stream_verifier.h"
#include "tools/kvmesh/command.h"
#include "tools/kvmesh/dial.h"
#include "tools/kvmesh/outcome.h"
#include "tools/kvmesh/slab_commands.h"
#include "tools/kvmesh/slab_describe.h"

namespace kvmesh::cli {
namespace {

constexpr absl::Duration kMetaTimeout = absl::Seconds(30);
constexpr absl::Duration kWholeTimeout = absl::Minutes(30);

class FileSource final : public slab::ByteSource {
 public:
  static absl::StatusOr<std::unique_ptr<FileSource>> Open(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat info {};
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      const std::string cause = fd < 0 ? strerror(errno) : "not a file";
      if (fd >= 0) close(fd);
      return absl::NotFoundError(absl::StrCat(path, ": ", cause));
    }
    return std::unique_ptr<FileSource>(new FileSource(fd, static_cast<uint64_t>(info.st_size)));
  }
  ~FileSource() override { close(fd_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  uint64_t size() const override { return size_; }
  absl::Status ReadAt(uint64_t offset, absl::Span<char> out) const override {
    while (!out.empty()) {
      const ssize_t got = pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0)
        return absl::UnavailableError(got < 0 ? strerror(errno) : "the file ends early");
      offset += static_cast<uint64_t>(got);
      out.remove_prefix(static_cast<size_t>(got));
    }
    return absl::OkStatus();
  }

 private:
  FileSource(int fd, uint64_t size) : fd_(fd), size_(size) {}
  const int fd_;
  const uint64_t size_;
};

absl::StatusOr<slab::SlabMeta> InspectFile(const std::string& path, bool verify) {
  KVMESH_ASSIGN_OR_RETURN(const std::unique_ptr<FileSource> source, FileSource::Open(path));
  KVMESH_ASSIGN_OR_RETURN(const slab::SlabReader reader, slab::SlabReader::Open(*source));
  if (verify) KVMESH_RETURN_IF_ERROR(reader.VerifyPayload());
  return reader.meta();
}

absl::StatusOr<v1::SlabId> ParseId(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '.');
  const std::vector<std::string> ends =
      absl::StrSplit(parts.size() == 3 ? parts[1] : std::string(), '-');
  v1::SlabId id;
  uint32_t begin = 0;
  uint32_t end = 0;
  if (parts.size() != 3 || ends.size() != 2 || !absl::SimpleAtoi(ends[0], &begin) ||
      !absl::SimpleAtoi(ends[1], &end)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no slab id: KEY.BEGIN-END.WRITE_ID, as `slab ls` prints"));
  }
  id.set_key(parts[0]);
  id.mutable_layers()->set_begin(begin);
  id.mutable_layers()->set_end(end);
  id.set_write_id(parts[2]);
  return id;
}

// Everything is streamed through the verifier, or only head and trailer are fetched.
absl::StatusOr<slab::SlabMeta> InspectStored(const std::string& store, const std::string& text,
                                             bool verify) {
  v1::GetRequest request;
  KVMESH_ASSIGN_OR_RETURN(*request.mutable_slab(), ParseId(text));
  request.set_part(verify ? v1::GET_PART_WHOLE : v1::GET_PART_META);
  std::unique_ptr<slab::SlabStreamVerifier> verifier;
  std::string ends;
  uint64_t size = 0;
  const auto on_bytes = [&](const v1::GetHeader& header, absl::string_view bytes) {
    size = header.size_bytes();
    if (!verify) {
      absl::StrAppend(&ends, bytes);
      return absl::OkStatus();
    }
    if (verifier == nullptr) verifier = std::make_unique<slab::SlabStreamVerifier>(size);
    return verifier->Append(bytes);
  };
  KVMESH_RETURN_IF_ERROR(rpc::GetSlab(Dial(store, rpc::Role::kBlob), request,
                                      verify ? kWholeTimeout : kMetaTimeout, on_bytes)
                             .status());
  if (verify) {
    if (verifier == nullptr) return absl::DataLossError("the store sent nothing");
    KVMESH_RETURN_IF_ERROR(verifier->Finish());
    return *verifier->meta();
  }
  const absl::string_view bytes = ends;
  KVMESH_ASSIGN_OR_RETURN(const slab::Head head,
                          slab::ParseHead(bytes.substr(0, slab::kHeadBytes), size));
  if (bytes.size() != slab::kHeadBytes + head.meta_bytes + slab::kTrailerBytes) {
    return absl::DataLossError("the store sent another number of bytes than head and trailer have");
  }
  KVMESH_ASSIGN_OR_RETURN(slab::SlabMeta meta,
                          slab::ParseMeta(head, bytes.substr(slab::kHeadBytes, head.meta_bytes)));
  KVMESH_RETURN_IF_ERROR(
      slab::CheckTrailer(bytes, bytes.substr(bytes.size() - slab::kTrailerBytes), meta));
  return meta;
}

int Inspect(Context& context, const std::string& slab, const std::string& store, bool verify) {
  const absl::StatusOr<slab::SlabMeta> meta =
      store.empty() ? InspectFile(slab, verify) : InspectStored(store, slab, verify);
  if (!meta.ok()) return Report(meta.status(), context.json, context.interrupt->requested());
  const char* checked = verify ? "header, meta section, trailer, every byte of the payload"
                               : "header, meta section, trailer";
  if (context.json) {
    Json described = DescribeSlab(*meta);
    described["checked"] = checked;
    PrintJson(described);
    return kDone;
  }
  PrintSlab(*meta);
  std::printf("\nsound: %s\n", checked);
  return kDone;
}

}  // namespace

void AddSlabInspect(CLI::App& slab, Action* chosen) {
  auto name = std::make_shared<std::string>();
  auto store = std::make_shared<std::string>();
  auto verify = std::make_shared<bool>(false);
  CLI::App* command =
      slab.add_subcommand("inspect", "Header, meta section, layer table and checks of one slab");
  command->add_option("slab", *name, "A file; or, with --store, an id as `slab ls` prints it")
      ->required();
  command->add_option("--store", *store, "Address of the store that has it, host:port");
  command->add_flag("--verify", *verify, "Also read and check the whole payload");
  command->callback([=] {
    *chosen = [=](Context& context) { return Inspect(context, *name, *store, *verify); };
  });
}

}  // namespace kvmesh::cli
