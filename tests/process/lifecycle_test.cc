// Processes that start, stop, die and come back.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "tests/process/process_testing.h"
#include "tools/kvmesh/local_mesh.h"

namespace kvmesh::process_testing {
namespace {

constexpr char kPrompt[] = "The history of measurement begins with";
// Long enough that a fault set off early in a generation meets it running.
constexpr uint32_t kTokens = 256;

TEST(Lifecycle, EveryServiceAnswersHealthAndMetrics) {
  Mesh mesh(TinyModel());
  ASSERT_TRUE(mesh.started());
  EXPECT_TRUE(Generate(mesh.router(), "hello", 4).status.ok());
  for (const cli::ServiceEntry& service : mesh.file().services) {
    const bool router = service.name == "router";
    EXPECT_EQ(Health(service.address, ""), grpc::health::v1::HealthCheckResponse::SERVING);
    EXPECT_EQ(
        Health(service.address, router ? "kvmesh.v1.RouterService" : "kvmesh.v1.ShardService"),
        grpc::health::v1::HealthCheckResponse::SERVING);
    const std::string metrics = Metrics(service.metrics);
    EXPECT_NE(metrics.find(router ? "kvmesh_router_" : "kvmesh_shard_"), std::string::npos)
        << service.name << " at " << service.metrics << ": " << metrics.substr(0, 300);
  }
}

TEST(Lifecycle, ReflectionListsAndDescribesEveryServiceHealthIncluded) {
  Mesh mesh(TinyModel());
  ASSERT_TRUE(mesh.started());
  for (const cli::ServiceEntry& service : mesh.file().services) {
    const std::string own =
        service.name == "router" ? "kvmesh.v1.RouterService" : "kvmesh.v1.ShardService";
    // ServerReflectionRequest: list_services is field 7, file_containing_symbol field 4.
    const std::string listed = Reflect(service.address, "\x3a\x01*");
    for (const std::string& name : {own, std::string("grpc.health.v1.Health")}) {
      EXPECT_NE(listed.find(name), std::string::npos) << service.name << " lists " << listed;
      std::string request = "\x22";
      request.push_back(static_cast<char>(name.size()));
      const std::string described = Reflect(service.address, request + name);
      EXPECT_NE(described.find(".proto"), std::string::npos)
          << service.name << " describes " << name;
    }
  }
}

TEST(Lifecycle, ServingOtherMachinesInPlaintextIsRefusedOrWarnedOf) {
  TempDir dir;
  const Outcome refused = RunProgram({Program("kvmesh-meta"), "--listen", "0.0.0.0:0"});
  EXPECT_EQ(refused.exit_code, cli::kUsage);
  EXPECT_NE(refused.err.find("nothing is encrypted"), std::string::npos) << refused.err;
  constexpr char kWarning[] = "is served without TLS";
  for (const std::string host : {"0.0.0.0", "127.0.0.1"}) {
    const std::string ready = absl::StrCat(dir.path(), "/", host);
    Process meta({Program("kvmesh-meta"), "--listen", host + ":0", "--allow-plaintext",
                  "--ready-file", ready},
                 dir);
    EXPECT_TRUE(WaitUntil([&] { return std::filesystem::exists(ready); })) << meta.Err();
    EXPECT_EQ(meta.Err().find(kWarning) != std::string::npos, host == "0.0.0.0") << meta.Err();
    meta.Signal(SIGTERM);
    EXPECT_EQ(meta.Wait(), 0);
  }
}

TEST(Lifecycle, DownEndsEveryProcessAndTheFolderIsFreeAgain) {
  Mesh mesh(TinyModel(), {"--shards", "3"});
  ASSERT_TRUE(mesh.started());
  const Outcome down = RunCli({"down", "--data-dir", mesh.data_dir(), "--json"});
  EXPECT_EQ(down.exit_code, cli::kDone) << down.err;
  EXPECT_EQ(down.Json()["stopped"].size(), 4u);
  EXPECT_EQ(down.Json()["killed"], false);
  for (const cli::ServiceEntry& service : mesh.file().services) {
    EXPECT_TRUE(IsGone(service.pid, cli::ProgramOf(service.name)));
  }
  EXPECT_FALSE(std::filesystem::exists(cli::MeshPath(mesh.data_dir())));
  const Outcome again =
      RunCli({"up", "--model", TinyModel(), "--data-dir", mesh.data_dir(), "--detach", "--json"});
  EXPECT_EQ(again.exit_code, cli::kDone) << again.err;
}

// As a build does it that runs beside a mesh: another file takes the program's name.
void Replace(const std::string& program, const std::string& path) {
  std::filesystem::remove(path);
  std::error_code other_device;
  std::filesystem::create_hard_link(Program(program), path, other_device);
  if (other_device) std::filesystem::copy_file(Program(program), path);
}

TEST(Lifecycle, DownEndsServicesWhoseProgramsWereReplacedMeanwhile) {
  TempDir dir;
  const std::string bin = dir.path() + "/bin/";
  std::filesystem::create_directory(bin);
  const std::vector<std::string> programs = {"kvmesh", "kvmesh-router", "kvmesh-shard"};
  for (const std::string& program : programs) Replace(program, bin + program);
  const std::string data_dir = dir.path() + "/mesh";
  const Outcome up = RunProgram({bin + "kvmesh", "up", "--model", TinyModel(), "--shards", "1",
                                 "--data-dir", data_dir, "--no-checkpoints", "--detach"});
  ASSERT_EQ(up.exit_code, cli::kDone) << up.err;
  const cli::MeshFile mesh = *cli::ReadMesh(data_dir);
  for (const std::string& program : programs) Replace(program, bin + program);
  for (const cli::ServiceEntry& service : mesh.services) {
    const std::string exe =
        std::filesystem::read_symlink(absl::StrCat("/proc/", service.pid, "/exe")).string();
    EXPECT_NE(exe.find(" (deleted)"), std::string::npos) << exe;
  }
  const Outcome down = RunProgram({bin + "kvmesh", "down", "--data-dir", data_dir, "--json"});
  EXPECT_EQ(down.exit_code, cli::kDone) << down.err;
  EXPECT_EQ(down.Json()["stopped"].size(), mesh.services.size());
  EXPECT_EQ(down.Json()["killed"], false);
  for (const cli::ServiceEntry& service : mesh.services) {
    EXPECT_TRUE(IsGone(service.pid, cli::ProgramOf(service.name))) << service.name;
  }
}

class Attached : public ::testing::Test {
 protected:
  void SetUp() override {
    up_ = std::make_unique<Process>(
        std::vector<std::string>{Program("kvmesh"), "up", "--model", TinyModel(), "--data-dir",
                                 dir_.path() + "/mesh"},
        dir_);
    ASSERT_TRUE(WaitUntil([this] { return cli::ReadMesh(dir_.path() + "/mesh").ok(); }))
        << up_->Err();
    mesh_ = *cli::ReadMesh(dir_.path() + "/mesh");
  }

  bool AllGone() const {
    for (const cli::ServiceEntry& service : mesh_.services) {
      if (!IsGone(service.pid, cli::ProgramOf(service.name))) return false;
    }
    return true;
  }

  TempDir dir_;
  std::unique_ptr<Process> up_;
  cli::MeshFile mesh_;
};

TEST_F(Attached, CtrlCDrainsAndLeavesNothing) {
  up_->Signal(SIGINT);
  EXPECT_EQ(up_->Wait(), cli::kInterrupted) << up_->Err();
  EXPECT_TRUE(AllGone());
  EXPECT_FALSE(std::filesystem::exists(cli::MeshPath(dir_.path() + "/mesh")));
}

TEST_F(Attached, ServicesDieWithAKilledParent) {
  up_->Signal(SIGKILL);
  EXPECT_EQ(up_->Wait(), 128 + SIGKILL);
  EXPECT_TRUE(WaitUntil([this] { return AllGone(); }));
}

TEST_F(Attached, ADeadServiceIsToldWithItsReason) {
  kill(mesh_.services.front().pid, SIGKILL);
  EXPECT_TRUE(WaitUntil([this] {
    return up_->Err().find("was killed by signal 9") != std::string::npos;
  })) << up_->Err();
}

TEST(Drain, ARunningAnswerEndsBeforeTheRouterDoes) {
  Mesh mesh(RealModel());
  ASSERT_TRUE(mesh.started());
  const pid_t router = mesh.Service("router").pid;
  const Answer answer = Generate(mesh.router(), kPrompt, kTokens, [&](size_t tokens) {
    if (tokens == 3) kill(router, SIGTERM);
  });
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.ids.size(), kTokens);
  EXPECT_TRUE(WaitUntil([&] { return IsGone(router, "kvmesh-router"); }));
}

TEST(Drain, HealthSaysSoAtOnceAndASecondSignalEndsTheProcess) {
  Mesh mesh(RealModel());
  ASSERT_TRUE(mesh.started());
  const cli::ServiceEntry router = mesh.Service("router");
  const Answer answer = Generate(mesh.router(), kPrompt, 4000, [&](size_t tokens) {
    if (tokens != 3) return;
    kill(router.pid, SIGTERM);
    EXPECT_TRUE(WaitUntil(
        [&] {
          return Health(router.address) == grpc::health::v1::HealthCheckResponse::NOT_SERVING;
        },
        absl::Seconds(10)));
    EXPECT_FALSE(IsGone(router.pid, "kvmesh-router"));  // an answer still runs
    kill(router.pid, SIGTERM);
  });
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable) << answer.status;
  EXPECT_TRUE(WaitUntil([&] { return IsGone(router.pid, "kvmesh-router"); }, absl::Seconds(10)));
}

TEST(Drain, AnIdleServiceDoesNotWaitOutItsGrace) {
  Mesh mesh(TinyModel());
  ASSERT_TRUE(mesh.started());
  for (const cli::ServiceEntry& service : mesh.file().services) {
    const std::string program = service.name == "router" ? "kvmesh-router" : "kvmesh-shard";
    kill(service.pid, SIGTERM);
    // The grace is thirty seconds.
    EXPECT_TRUE(WaitUntil([&] { return IsGone(service.pid, program); }, absl::Seconds(15)))
        << service.name;
  }
}

TEST(Failover, ARouterKilledInMidGenerationLeavesShardsThatServeTheNextOne) {
  Mesh mesh(RealModel());
  ASSERT_TRUE(mesh.started());
  const Answer undisturbed = Generate(mesh.router(), kPrompt, kTokens);
  const cli::ServiceEntry router = mesh.Service("router");
  const std::vector<std::string> command = CommandOf(router.pid);
  const Answer cut = Generate(mesh.router(), kPrompt, kTokens, [&](size_t tokens) {
    if (tokens == 8) kill(router.pid, SIGKILL);
  });
  EXPECT_EQ(cut.status.code(), absl::StatusCode::kUnavailable) << cut.status;
  ASSERT_TRUE(WaitUntil([&] { return IsGone(router.pid, "kvmesh-router"); }));
  const Process restarted(command, mesh.dir());
  ASSERT_TRUE(WaitUntil([&] {
    return Health(router.address) == grpc::health::v1::HealthCheckResponse::SERVING;
  })) << restarted.Err();
  const Answer again = Generate(mesh.router(), kPrompt, kTokens);
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.ids, undisturbed.ids);
  // What the dead router's generation held is an orphan, and nobody's work.
  EXPECT_TRUE(WaitUntil([&] {
    const v1::GetStatusResponse status = mesh.Status();
    return std::all_of(status.shards().begin(), status.shards().end(),
                       [](const v1::ShardStatus& shard) { return shard.live_sessions() == 0; });
  }));
}

bool HasLiveSession(const std::string& shard) {
  const auto stub = v1::ShardService::NewStub(rpc::MakeChannel(shard));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::ListSessionsResponse response;
  const grpc::Status status = stub->ListSessions(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return std::any_of(
      response.sessions().begin(), response.sessions().end(),
      [](const v1::SessionInfo& session) { return session.state() == v1::SESSION_STATE_LIVE; });
}

TEST(Failover, AShardKilledInMidGenerationIsReplacedByItsReplicaWithTheSameIds) {
  Mesh mesh(RealModel(), {"--replicas", "2"});
  ASSERT_TRUE(mesh.started());
  const Answer undisturbed = Generate(mesh.router(), kPrompt, kTokens);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;
  ASSERT_EQ(undisturbed.ids.size(), kTokens);

  std::vector<std::string> tails;  // the two shards of the last layers
  const v1::GetStatusResponse shards = mesh.Status();
  for (const v1::ShardStatus& shard : shards.shards()) {
    if (shard.layers().end() == 30) tails.push_back(shard.address());
  }
  ASSERT_EQ(tails.size(), 2u);
  // What a shard itself says: the router's status lags behind it by a heartbeat.
  for (const std::string& tail : tails) {
    ASSERT_TRUE(WaitUntil([&] { return !HasLiveSession(tail); })) << "of the generation before";
  }
  std::string killed;
  const Answer disturbed = Generate(mesh.router(), kPrompt, kTokens, [&](size_t tokens) {
    if (tokens < 8 || !killed.empty()) return;
    for (const std::string& tail : tails) {
      if (HasLiveSession(tail)) killed = tail;
    }
    if (!killed.empty()) kill(mesh.At(killed).pid, SIGKILL);
  });
  EXPECT_NE(killed, "");
  EXPECT_TRUE(disturbed.status.ok()) << disturbed.status;
  EXPECT_EQ(disturbed.ids, undisturbed.ids);
  EXPECT_EQ(disturbed.finished.usage().reprefills(), 1u);
}

TEST(Failover, AShardRestartedOnTheSameAddressIsUsedAgainWithTheSameIds) {
  Mesh mesh(RealModel());
  ASSERT_TRUE(mesh.started());
  const Answer undisturbed = Generate(mesh.router(), kPrompt, kTokens);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;

  const cli::ServiceEntry& shard = mesh.Service("shard-1");
  const std::vector<std::string> command = CommandOf(shard.pid);
  std::unique_ptr<Process> restarted;
  const Answer disturbed = Generate(mesh.router(), kPrompt, kTokens, [&](size_t tokens) {
    if (tokens < 8 || restarted != nullptr) return;
    kill(shard.pid, SIGKILL);
    ASSERT_TRUE(WaitUntil([&] { return IsGone(shard.pid, "kvmesh-shard"); }));
    restarted = std::make_unique<Process>(command, mesh.dir());
  });
  EXPECT_TRUE(disturbed.status.ok()) << disturbed.status;
  EXPECT_EQ(disturbed.ids, undisturbed.ids);
  EXPECT_EQ(disturbed.finished.usage().reprefills(), 1u);
}

TEST(Failover, WithoutAReplicaTheAnswerEndsUnavailableAndNamesTheLayers) {
  Mesh mesh(TinyModel());
  ASSERT_TRUE(mesh.started());
  kill(mesh.Service("shard-1").pid, SIGKILL);
  const Outcome outcome = RunCli({"generate", "--router", mesh.router_address(), "--prompt",
                                  "hello", "--timeout", "5", "--json"});
  EXPECT_EQ(outcome.exit_code, cli::kUnavailable) << outcome.out;
  EXPECT_NE(outcome.err.find("layers"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace kvmesh::process_testing
