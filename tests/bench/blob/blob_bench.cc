// kvmesh-blob beside a plain gRPC pump, in one run: throughput, CPU, copies, small slabs, start-up.
//
//   blob_bench [--slab-mib N] [--rounds N] [--small N] [--scan N] [--commit TEXT]
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/blob_client.h"
#include "common/rpc/channel.h"
#include "common/slab/crc32c.h"
#include "common/slab/writer.h"
#include "tests/bench/blob/pump.h"
#include "tests/bench/blob/server_process.h"
#include "tests/testing/random_slab.h"

namespace kvmesh::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(10);
constexpr uint64_t kMiB = 1 << 20;

struct Flags {
  uint64_t slab_mib = 256;
  int rounds = 5;
  int small = 10000;
  int scan = 100000;
  std::string commit = "unknown";
};

struct Cost {
  double seconds = 0;
  double cpu_seconds = 0;  // client and server
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

std::string BinDir() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

class Folder {
 public:
  explicit Folder(const std::string& tier)
      : path_(absl::StrCat(tier == "ram_file" ? "/dev/shm" : "/tmp", "/kvmesh-bench-", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::unique_ptr<v1::BlobService::Stub> Connect(const ServerProcess& blob) {
  const auto channel = rpc::MakeChannel(blob.address());
  channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(60));
  return v1::BlobService::NewStub(channel);
}

std::unique_ptr<ServerProcess> StartBlob(const std::string& tier, const Folder& folder,
                                         const std::vector<std::string>& environment = {}) {
  const std::string ready = folder.path() + "/ready.json";
  return std::make_unique<ServerProcess>(
      std::vector<std::string>{BinDir() + "/kvmesh-blob", "--tier", tier, "--dir",
                               folder.path() + "/data", "--budget-bytes", "40000000000",
                               "--transfers-max", "64", "--ready-file", ready, "--log-level", "2"},
      ready, environment);
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

Cost Measure(const ServerProcess& server, const std::function<void()>& work) {
  const double cpu = OwnCpuSeconds() + server.CpuSeconds();
  const double start = Now();
  work();
  return {.seconds = Now() - start, .cpu_seconds = OwnCpuSeconds() + server.CpuSeconds() - cpu};
}

// The best of the rounds, as for the pump: others share the machine.
void Keep(const Cost& cost, Cost* best) {
  if (best->seconds == 0 || cost.seconds < best->seconds) best->seconds = cost.seconds;
  if (best->cpu_seconds == 0 || cost.cpu_seconds < best->cpu_seconds) {
    best->cpu_seconds = cost.cpu_seconds;
  }
}

void Print(const std::string& what, const Cost& cost, const Cost& bound, uint64_t bytes) {
  const double mib = static_cast<double>(bytes) / kMiB;
  std::printf("%-14s %8.0f MiB/s   ratio to pump %.2f   CPU %.2f s/GiB   ratio to pump %.2f\n",
              what.c_str(), mib / cost.seconds, bound.seconds / cost.seconds,
              cost.cpu_seconds * 1024 / mib, cost.cpu_seconds / bound.cpu_seconds);
}

// A large slab and its parts, in the memory of this process.
class LargeSlab {
 public:
  LargeSlab(uint64_t seed, uint64_t bytes) {
    constexpr uint32_t kTokens = 1024;
    state_.resize(bytes);
    uint64_t word = seed * 0x9E3779B97F4A7C15;
    for (size_t i = 0; i + 8 <= state_.size(); i += 8) {
      word = word * 6364136223846793005 + 1442695040888963407;
      std::memcpy(&state_[i], &word, 8);
    }
    auto writer = slab::SlabWriter::Create(testing::RandomMeta(seed, {0, 1}, kTokens));
    Must(writer.status());
    Must(writer->AddRegion(slab::StateKind::kKeyValue, slab::DType::kF16, 0, {state_}));
    auto image = writer->Finish();
    Must(image.status());
    image_ = std::make_unique<slab::SlabImage>(*std::move(image));
  }
  const slab::SlabImage& image() const { return *image_; }

 private:
  std::string state_;
  std::unique_ptr<slab::SlabImage> image_;
};

void Put(v1::BlobService::Stub& stub, const slab::SlabImage& image) {
  Must(rpc::PutSlab(stub, HeaderOf(image.meta()), image.Parts(), kTimeout).status());
}

void Get(v1::BlobService::Stub& stub, const slab::SlabImage& image) {
  v1::GetRequest request;
  *request.mutable_slab() = HeaderOf(image.meta()).slab();
  request.set_part(v1::GET_PART_WHOLE);
  Must(rpc::GetSlab(stub, request, kTimeout, [](const v1::GetHeader&, absl::string_view) {
         return absl::OkStatus();
       }).status());
}

void Delete(v1::BlobService::Stub& stub, const slab::SlabImage& image) {
  grpc::ClientContext context;
  v1::DeleteRequest request;
  *request.mutable_slab() = HeaderOf(image.meta()).slab();
  v1::DeleteResponse response;
  if (!stub.Delete(&context, request, &response).ok()) std::exit(1);
}

// Each round: pump both ways, put, get, delete, one after another, so that what else the machine
// does hits all alike.
void BenchThroughput(const std::string& tier, const Flags& flags, const ServerProcess& pump,
                     const LargeSlab& slab) {
  const uint64_t bytes = slab.image().size();
  const std::string chunk(kMiB, 'c');
  const Folder folder(tier);
  const auto blob = StartBlob(tier, folder);
  const auto stub = Connect(*blob);
  Cost to, from, put, get;
  for (int round = 0; round < flags.rounds; ++round) {
    Keep(Measure(pump, [&] { PumpTo(pump.address(), chunk, bytes); }), &to);
    Keep(Measure(*blob, [&] { Put(*stub, slab.image()); }), &put);
    Keep(Measure(pump, [&] { PumpFrom(pump.address(), bytes); }), &from);
    Keep(Measure(*blob, [&] { Get(*stub, slab.image()); }), &get);
    Delete(*stub, slab.image());
  }
  Print("pump to", to, to, bytes);
  Print(tier + " put", put, to, bytes);
  Print("pump from", from, from, bytes);
  Print(tier + " get", get, from, bytes);
}

uint64_t Copied(const ServerProcess& server, const std::string& file) {
  std::filesystem::remove(file);
  kill(server.pid(), SIGUSR1);
  uint64_t count = 0;
  for (int i = 0; i < 1000 && count == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::ifstream(file) >> count;
  }
  return count;
}

void BenchCopies(const std::string& tier, const LargeSlab& slab) {
  const Folder folder(tier);
  const std::string count_file = folder.path() + "/copied";
  const auto blob = StartBlob(
      tier, folder,
      {"LD_PRELOAD=" + BinDir() + "/libkvmesh_copy_count.so", "KVMESH_COPY_COUNT=" + count_file});
  const auto stub = Connect(*blob);
  const auto bytes = static_cast<double>(slab.image().size());
  const uint64_t start = Copied(*blob, count_file);
  Put(*stub, slab.image());
  const uint64_t put = Copied(*blob, count_file);
  Get(*stub, slab.image());
  const uint64_t get = Copied(*blob, count_file);
  std::printf("%-9s copies of each byte within the store: put %.2f, get %.2f\n", tier.c_str(),
              static_cast<double>(put - start) / bytes, static_cast<double>(get - put) / bytes);
}

void BenchSmall(const std::string& tier, int count) {
  constexpr int kThreads = 8;
  const Folder folder(tier);
  const auto blob = StartBlob(tier, folder);
  std::vector<testing::RandomSlab> slabs;
  for (int i = 0; i < count; ++i) slabs.push_back(testing::MakeSlabOfSize(1 + i, 56 << 10));
  std::atomic<int> next{0};
  const double start = Now();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const auto stub = Connect(*blob);
      for (int i = next++; i < count; i = next++) {
        Must(rpc::PutSlab(*stub, HeaderOf(slabs[i].meta), {slabs[i].bytes}, kTimeout).status());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%-9s %d slabs of %zu bytes, %d at once: %.0f puts/s\n", tier.c_str(), count,
              slabs[0].bytes.size(), kThreads, count / (Now() - start));
}

// Files written here, as the tier names them, so that the start alone is measured.
void BenchScan(int count) {
  const Folder folder("ram_file");
  { StartBlob("ram_file", folder); }
  for (int i = 0; i < count; ++i) {
    const auto slab = testing::MakeSlabOfSize(1 + i, 4096);
    const std::string key = slab.meta.key.ToHex();
    std::ofstream(absl::StrCat(folder.path(), "/data/slabs/", key.substr(0, 2), "/", key, ".0-1.",
                               slab.meta.write_id.ToHex()),
                  std::ios::binary)
        << slab.bytes;
  }
  const auto blob = StartBlob("ram_file", folder);
  const auto stub = Connect(*blob);
  grpc::ClientContext context;
  v1::BlobServiceGetStatsResponse stats;
  if (!stub->GetStats(&context, {}, &stats).ok()) std::exit(1);
  std::printf("start-up scan: %lu slabs verified in %.2f s (CPU %.2f s), files in memory\n",
              stats.slabs(), blob->ready_seconds(), blob->CpuSeconds());
}

int Main(int argc, char** argv) {
  Flags flags;
  std::string serve_pump;
  CLI::App app("blob_bench");
  app.add_option("--slab-mib", flags.slab_mib, "Size of the large slab")->capture_default_str();
  app.add_option("--rounds", flags.rounds, "Rounds, of which the best counts")
      ->capture_default_str();
  app.add_option("--small", flags.small, "Small slabs to put; 0: skip")->capture_default_str();
  app.add_option("--scan", flags.scan, "Slabs to find at start-up; 0: skip")->capture_default_str();
  app.add_option("--commit", flags.commit, "Printed with the figures");
  app.add_option("--serve-pump", serve_pump, "Serve the pump and write its address to this file");
  CLI11_PARSE(app, argc, argv);
  if (!serve_pump.empty()) {
    ServePump(serve_pump);
    return 0;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("blob_bench, commit %s, %u processors\n", flags.commit.c_str(),
              std::thread::hardware_concurrency());
  const LargeSlab slab(1, flags.slab_mib * kMiB);
  {
    const Folder folder("disk");
    const std::string ready = folder.path() + "/pump.json";
    const ServerProcess pump({BinDir() + "/blob_bench", "--serve-pump", ready}, ready);
    for (const char* tier : {"ram", "ram_file", "disk"}) BenchThroughput(tier, flags, pump, slab);
  }
  for (const char* tier : {"ram", "ram_file", "disk"}) BenchCopies(tier, slab);
  if (flags.small > 0) {
    for (const char* tier : {"ram", "ram_file", "disk"}) BenchSmall(tier, flags.small);
  }
  if (flags.scan > 0) BenchScan(flags.scan);
  return 0;
}

}  // namespace
}  // namespace kvmesh::bench

int main(int argc, char** argv) {
  return kvmesh::bench::Main(argc, argv);
}
