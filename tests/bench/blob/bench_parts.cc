#include "tests/bench/blob/bench_parts.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "tests/testing/random_slab.h"

namespace kvmesh::bench {

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

std::string BinDir() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Folder::Folder(const std::string& tier)
    : path_(absl::StrCat(tier == "ram_file" ? "/dev/shm" : "/tmp", "/kvmesh-bench-", tier, "-",
                         getpid())) {
  std::filesystem::create_directories(path_);
}

Folder::~Folder() {
  std::filesystem::remove_all(path_);
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  std::shared_ptr<grpc::Channel> channel = rpc::MakeChannel(address);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(60))) {
    Must(absl::UnavailableError(absl::StrCat("no connection to ", address)));
  }
  return channel;
}

std::unique_ptr<ServerProcess> StartBlob(const std::string& tier, const Folder& folder,
                                         const std::vector<std::string>& environment) {
  const std::string ready = folder.path() + "/ready.json";
  return std::make_unique<ServerProcess>(
      std::vector<std::string>{BinDir() + "/kvmesh-blob", "--tier", tier, "--dir",
                               folder.path() + "/data", "--budget-bytes", "40000000000",
                               "--transfers-max", "64", "--ready-file", ready, "--log-level", "2"},
      ready, environment);
}

std::shared_ptr<const LargeSlab> LargeSlab::Make(uint64_t seed, uint64_t bytes) {
  constexpr uint32_t kTokens = 1024;
  auto slab = std::make_shared<LargeSlab>();
  slab->state_.resize(bytes);
  uint64_t word = seed * 0x9E3779B97F4A7C15;
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    word = word * 6364136223846793005 + 1442695040888963407;
    std::memcpy(&slab->state_[i], &word, 8);
  }
  auto writer = slab::SlabWriter::Create(testing::RandomMeta(seed, {0, 1}, kTokens));
  Must(writer.status());
  Must(writer->AddRegion(slab::StateKind::kKeyValue, slab::DType::kF16, 0, {slab->state_}));
  auto image = writer->Finish();
  Must(image.status());
  slab->image_ = std::make_unique<slab::SlabImage>(*std::move(image));
  return slab;
}

v1::PutHeader HeaderOf(const slab::SlabMeta& meta) {
  v1::PutHeader header;
  header.mutable_slab()->set_key(meta.key.ToHex());
  header.mutable_slab()->mutable_layers()->set_begin(meta.header.layers.begin);
  header.mutable_slab()->mutable_layers()->set_end(meta.header.layers.end);
  header.mutable_slab()->set_write_id(meta.write_id.ToHex());
  header.set_tokens_sha256(std::string(meta.tokens_sha256.bytes()));
  header.set_size_bytes(meta.file_bytes());
  header.set_payload_crc32c(meta.payload_crc32c());
  return header;
}

void Put(const std::shared_ptr<grpc::Channel>& channel, const LargeSlab& slab) {
  Must(rpc::PutSlab(channel, HeaderOf(slab.meta()),
                    {.parts = slab.parts(), .owner = slab.shared_from_this()}, kTimeout)
           .status());
}

void Get(const std::shared_ptr<grpc::Channel>& channel, const LargeSlab& slab) {
  v1::GetRequest request;
  *request.mutable_slab() = HeaderOf(slab.meta()).slab();
  request.set_part(v1::GET_PART_WHOLE);
  Must(rpc::GetSlab(channel, request, kTimeout, [](const v1::GetHeader&, absl::string_view) {
         return absl::OkStatus();
       }).status());
}

void Delete(const std::shared_ptr<grpc::Channel>& channel, const LargeSlab& slab) {
  grpc::ClientContext context;
  v1::DeleteRequest request;
  *request.mutable_slab() = HeaderOf(slab.meta()).slab();
  v1::DeleteResponse response;
  const auto stub = v1::BlobService::NewStub(channel);
  Must(rpc::FromGrpc(stub->Delete(&context, request, &response)));
}

}  // namespace kvmesh::bench
