// The real kvmesh-blob: killed between any two steps, started again, and looked at from outside.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/rpc/blob_client.h"
#include "common/rpc/channel.h"
#include "kvmesh/v1/blob.grpc.pb.h"
#include "tests/testing/store_fixture.h"
#include "tests/testing/test_data.h"

namespace kvmesh::blob {
namespace {

using testing::MakeRandomSlab;
using testing::MakeSlabOfSize;
using testing::RandomSlab;

constexpr absl::Duration kTimeout = absl::Seconds(120);
constexpr char kBudget[] = "8000000000";

std::string BinDir() {
  const char* folder = std::getenv("KVMESH_BIN_DIR");
  return folder == nullptr ? "build/dev/bin" : folder;
}

// One run of the program. Killed when the object goes.
class BlobProcess {
 public:
  BlobProcess(const std::string& tier, const std::string& folder, long crash_at) {
    const std::string ready = folder + ".ready";
    log_ = folder + ".log";
    std::filesystem::remove(ready);
    pid_ = fork();
    if (pid_ == 0) Exec(tier, folder, ready, crash_at);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!std::filesystem::exists(ready) && Running() &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (!std::filesystem::exists(ready)) return;
    const auto json = nlohmann::json::parse(testing::ReadWholeFile(ready));
    channel_ = rpc::MakeChannel(json["address"].get<std::string>());
    channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stub_ = v1::BlobService::NewStub(channel_);
  }
  ~BlobProcess() {
    if (!ended_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &exit_, 0);
    }
  }

  // Null: it died before it served.
  v1::BlobService::Stub* stub() { return stub_.get(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  pid_t pid() const { return pid_; }
  std::string log() const { return testing::ReadWholeFile(log_); }
  int Stop() {
    kill(pid_, SIGTERM);
    waitpid(pid_, &exit_, 0);
    ended_ = true;
    return WIFEXITED(exit_) ? WEXITSTATUS(exit_) : 128 + WTERMSIG(exit_);
  }

 private:
  [[noreturn]] void Exec(const std::string& tier, const std::string& folder,
                         const std::string& ready, long crash_at) const {
    const int log = open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(log, 1);
    dup2(log, 2);
    if (crash_at > 0) {
      setenv("LD_PRELOAD", (BinDir() + "/libkvmesh_crash_shim.so").c_str(), 1);
      setenv("KVMESH_CRASH_AT", std::to_string(crash_at).c_str(), 1);
    }
    const std::string program = BinDir() + "/kvmesh-blob";
    execl(program.c_str(), program.c_str(), "--tier", tier.c_str(), "--dir", folder.c_str(),
          "--budget-bytes", kBudget, "--ready-file", ready.c_str(), "--metrics-port", "0",
          static_cast<char*>(nullptr));
    _exit(127);
  }
  bool Running() {
    ended_ = ended_ || waitpid(pid_, &exit_, WNOHANG) == pid_;
    return !ended_;
  }

  std::string log_;
  pid_t pid_ = 0;
  int exit_ = 0;
  bool ended_ = false;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::BlobService::Stub> stub_;
};

v1::SlabId IdOf(const RandomSlab& slab) {
  v1::SlabId id;
  id.set_key(slab.meta.key.ToHex());
  id.mutable_layers()->set_begin(slab.meta.header.layers.begin);
  id.mutable_layers()->set_end(slab.meta.header.layers.end);
  id.set_write_id(slab.meta.write_id.ToHex());
  return id;
}

absl::Status Put(const BlobProcess& process, const RandomSlab& slab) {
  v1::PutHeader header;
  *header.mutable_slab() = IdOf(slab);
  header.set_tokens_sha256(std::string(slab.meta.tokens_sha256.bytes()));
  header.set_size_bytes(slab.bytes.size());
  header.set_payload_crc32c(slab.meta.payload_crc32c());
  return rpc::PutSlab(process.channel(), header, rpc::SlabBytes::Of(slab.bytes), kTimeout).status();
}

bool Delete(v1::BlobService::Stub& stub, const v1::SlabId& id) {
  grpc::ClientContext context;
  v1::DeleteRequest request;
  *request.mutable_slab() = id;
  v1::DeleteResponse response;
  return stub.Delete(&context, request, &response).ok();
}

std::string Get(const BlobProcess& process, const v1::SlabId& id) {
  v1::GetRequest request;
  *request.mutable_slab() = id;
  request.set_part(v1::GET_PART_WHOLE);
  std::string bytes;
  const auto got = rpc::GetSlab(process.channel(), request, kTimeout,
                                [&](const v1::GetHeader&, absl::string_view chunk) {
                                  bytes.append(chunk.data(), chunk.size());
                                  return absl::OkStatus();
                                });
  return got.ok() ? bytes : absl::StrCat("error: ", got.status().message());
}

std::vector<v1::SlabInfo> List(v1::BlobService::Stub& stub) {
  grpc::ClientContext context;
  v1::ListRequest request;
  request.set_page_size(1000);
  v1::ListResponse response;
  EXPECT_TRUE(stub.List(&context, request, &response).ok());
  return {response.slabs().begin(), response.slabs().end()};
}

// What the test knows of one slab.
enum class Fate { kUnknown, kAcknowledged, kDeleted };

class Crash : public ::testing::TestWithParam<std::string> {};

// One process a round: it recovers what the killed one before it left, is checked, and is then put
// to and deleted from until it kills itself.
TEST_P(Crash, KilledBetweenAnyTwoStepsItLosesNothingAndServesNoHalf) {
  const char* rounds_text = std::getenv("KVMESH_CRASH_ROUNDS");
  const int rounds = rounds_text == nullptr ? 150 : std::atoi(rounds_text);
  const char* seed_text = std::getenv("KVMESH_CRASH_SEED");
  const uint64_t seed =
      seed_text == nullptr ? std::random_device()() : std::strtoull(seed_text, nullptr, 10);
  std::printf("seed %lu, %d rounds\n", seed, rounds);
  std::mt19937_64 random(seed);
  const testing::TempFolder base(GetParam());
  const std::string folder = base.path() + "/data";
  std::map<std::string, Fate> fates;
  std::map<std::string, RandomSlab> slabs;
  uint64_t temporaries = 0;
  int deaths = 0;
  uint64_t next_seed = 1;
  for (int round = 0; round < rounds; ++round) {
    // A put takes about eight steps; the start two.
    const long crash_at = static_cast<long>(1 + random() % 34);
    BlobProcess process(GetParam(), folder, crash_at);
    if (process.stub() == nullptr) {
      ++deaths;  // while it started
      continue;
    }
    grpc::ClientContext context;
    v1::BlobServiceGetStatsResponse stats;
    ASSERT_TRUE(process.stub()->GetStats(&context, {}, &stats).ok());
    EXPECT_EQ(stats.startup_quarantined_size(), 0) << process.log();
    if (stats.startup_removed().contains("temporary")) {
      temporaries += stats.startup_removed().at("temporary");
      EXPECT_NE(process.log().find("removed: temporary"), std::string::npos);
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      EXPECT_FALSE(absl::StartsWith(entry.path().filename().string(), ".tmp-")) << entry.path();
    }
    std::set<std::string> listed;
    for (const v1::SlabInfo& info : List(*process.stub())) {
      const std::string name = info.slab().key();
      listed.insert(name);
      EXPECT_NE(fates[name], Fate::kDeleted);
      EXPECT_TRUE(Get(process, info.slab()) == slabs.at(name).bytes) << name;
    }
    for (const auto& [name, fate] : fates) {
      EXPECT_TRUE(fate != Fate::kAcknowledged || listed.contains(name))
          << "lost " << name << " in round " << round;
    }
    for (int step = 0; step < 8; ++step) {
      // In memory, files of deleted slabs of this size are written again.
      const bool large = GetParam() == "ram_file" && step % 3 != 0;
      const uint64_t slab_seed = next_seed++;
      const RandomSlab slab = large ? MakeSlabOfSize(slab_seed, 1 << 20)
                                    : MakeRandomSlab({.seed = slab_seed, .layers = {0, 2}});
      const std::string name = slab.meta.key.ToHex();
      slabs[name] = slab;
      fates[name] = Fate::kUnknown;
      if (!Put(process, slab).ok()) break;
      fates[name] = Fate::kAcknowledged;
      if (step % 3 != 1) continue;
      fates[name] = Fate::kUnknown;
      if (!Delete(*process.stub(), IdOf(slab))) break;
      fates[name] = Fate::kDeleted;
    }
    ++deaths;
    // Few enough to look at every one in every round.
    if (slabs.size() > 60) {
      std::filesystem::remove_all(folder);
      fates.clear();
      slabs.clear();
    }
  }
  std::printf("%d kills, %lu temporary files removed at starts\n", deaths, temporaries);
  EXPECT_GT(temporaries, 0U);
}

INSTANTIATE_TEST_SUITE_P(Tiers, Crash, ::testing::Values("disk", "ram_file"),
                         [](const auto& info) { return info.param; });

TEST(BlobProcess, DrainsOnSigtermAndFindsItsSlabsAgain) {
  const testing::TempFolder base("disk");
  const RandomSlab slab = MakeRandomSlab({});
  {
    BlobProcess process("disk", base.path() + "/data", 0);
    ASSERT_NE(process.stub(), nullptr) << process.log();
    ASSERT_TRUE(Put(process, slab).ok());
    EXPECT_EQ(process.Stop(), 0);
  }
  BlobProcess process("disk", base.path() + "/data", 0);
  ASSERT_NE(process.stub(), nullptr) << process.log();
  EXPECT_EQ(Get(process, IdOf(slab)), slab.bytes);
  // The folder is taken.
  BlobProcess second("disk", base.path() + "/data", 0);
  EXPECT_EQ(second.stub(), nullptr);
  EXPECT_NE(second.log().find("another process"), std::string::npos);
}

uint64_t PeakResidentBytes(pid_t pid) {
  for (absl::string_view line :
       absl::StrSplit(testing::ReadWholeFile(absl::StrCat("/proc/", pid, "/status")), '\n')) {
    if (absl::StartsWith(line, "VmHWM:")) return std::strtoull(line.data() + 6, nullptr, 10) << 10;
  }
  return 0;
}

// 2 GiB of one region, made of one part that repeats.
struct LargeSlab {
  std::string part = std::string(32 << 20, 'k');
  std::unique_ptr<slab::SlabImage> image;
};

std::shared_ptr<const LargeSlab> MakeLargeSlab() {
  constexpr uint32_t kTokens = 1 << 16;
  auto large = std::make_shared<LargeSlab>();
  auto writer = slab::SlabWriter::Create(testing::RandomMeta(1, {0, 1}, kTokens));
  EXPECT_TRUE(writer.ok());
  EXPECT_TRUE(writer
                  ->AddRegion(slab::StateKind::kKeyValue, slab::DType::kF32, 0,
                              std::vector<absl::string_view>(64, large->part))
                  .ok());
  auto image = writer->Finish();
  EXPECT_TRUE(image.ok()) << image.status();
  large->image = std::make_unique<slab::SlabImage>(*std::move(image));
  return large;
}

class LargeSlabs : public ::testing::TestWithParam<std::string> {};

TEST_P(LargeSlabs, StreamThroughInBoundedMemory) {
  const testing::TempFolder base(GetParam());
  if (std::filesystem::space(base.path()).available < 3ULL << 30) {
    GTEST_SKIP() << base.path() << " lies on a medium with less than 3 GiB left";
  }
  const auto slab = MakeLargeSlab();
  const slab::SlabImage& image = *slab->image;
  ASSERT_GT(image.size(), 2ULL << 30);
  BlobProcess process(GetParam(), base.path() + "/data", 0);
  ASSERT_NE(process.stub(), nullptr) << process.log();
  const RandomSlab small = MakeSlabOfSize(1, 1 << 20);
  ASSERT_TRUE(Put(process, small).ok());
  Get(process, IdOf(small));
  const uint64_t before = PeakResidentBytes(process.pid());
  RandomSlab large;
  large.meta = image.meta();
  v1::PutHeader header;
  *header.mutable_slab() = IdOf(large);
  header.set_tokens_sha256(std::string(large.meta.tokens_sha256.bytes()));
  header.set_size_bytes(image.size());
  header.set_payload_crc32c(large.meta.payload_crc32c());
  const auto put = rpc::PutSlab(process.channel(), header, {.parts = image.Parts(), .owner = slab},
                                absl::Minutes(10));
  ASSERT_TRUE(put.ok()) << put.status();
  v1::GetRequest request;
  *request.mutable_slab() = IdOf(large);
  request.set_part(v1::GET_PART_WHOLE);
  uint64_t bytes = 0;
  const auto got = rpc::GetSlab(process.channel(), request, absl::Minutes(10),
                                [&](const v1::GetHeader&, absl::string_view chunk) {
                                  bytes += chunk.size();
                                  return absl::OkStatus();
                                });
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(bytes, image.size());
  const uint64_t grown = PeakResidentBytes(process.pid()) - before;
  std::printf("peak resident memory grew by %.1f MiB\n", static_cast<double>(grown) / (1 << 20));
  EXPECT_LE(grown, 64ULL << 20);
}

INSTANTIATE_TEST_SUITE_P(Tiers, LargeSlabs, ::testing::Values("disk", "ram_file"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvmesh::blob
