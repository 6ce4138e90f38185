// Real shards and a real router, with a proxy before the tail that makes it look older than it is.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "tests/process/process_testing.h"

namespace kvmesh::process_testing {
namespace {

constexpr char kPrompt[] = "The history of measurement begins with";
constexpr uint32_t kTokens = 8;

// The ready file of a service as JSON; a discarded value while it is not there.
cli::Json ReadReady(const std::string& path) {
  std::ifstream file(path);
  return cli::Json::parse(file, nullptr, false);
}

// Two shard processes, the proxy before the second, and a router that knows no way around it.
class Fleet {
 public:
  Fleet(const std::string& model, const std::string& proxy_flag) : model_(model) {
    tail_ = Start("kvmesh-shard", "tail", {"--stage", "1/2"});
    proxy_ =
        std::make_unique<Process>(std::vector<std::string>{Program("kvmesh-test-proxy"), "--target",
                                                           tail_.address, proxy_flag},
                                  proxy_dir_);
    EXPECT_TRUE(WaitUntil([this] { return !proxy_->Out().empty(); })) << proxy_->Err();
    const std::string proxy(absl::StripAsciiWhitespace(proxy_->Out()));
    first_ =
        Start("kvmesh-shard", "first", {"--stage", "0/2", "--peers", proxy, "--metrics-port", "0"});
    router_ =
        Start("kvmesh-router", "router", {"--shards", absl::StrCat(first_.address, ",", proxy)});
    stub_ = v1::RouterService::NewStub(rpc::MakeChannel(router_.address));
    EXPECT_TRUE(WaitUntil([this] { return Status().ready(); }));
  }

  v1::RouterService::Stub& router() { return *stub_; }

  v1::GetStatusResponse Status() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::GetStatusResponse response;
    EXPECT_TRUE(stub_->GetStatus(&context, {}, &response).ok());
    return response;
  }

  // Rows that the first shard has run, by its own count.
  uint64_t TokensRun() const {
    const std::string page = Metrics(first_.metrics);
    const std::string name = "\nkvmesh_shard_tokens_total ";
    const size_t at = page.find(name);
    double value = -1;
    EXPECT_NE(at, std::string::npos) << page.substr(0, 2000);
    EXPECT_TRUE(absl::SimpleAtod(
        page.substr(at + name.size(), page.find('\n', at + 1) - at - name.size()), &value));
    return static_cast<uint64_t>(value);
  }

 private:
  struct Running {
    std::unique_ptr<TempDir> dir;
    std::unique_ptr<Process> process;
    std::string address;
    std::string metrics;
  };

  Running Start(const std::string& program, const std::string& name,
                std::vector<std::string> flags) {
    Running running{.dir = std::make_unique<TempDir>()};
    const std::string ready = absl::StrCat(running.dir->path(), "/", name, ".json");
    flags.insert(flags.begin(), {Program(program), "--model", model_, "--ready-file", ready});
    running.process = std::make_unique<Process>(flags, *running.dir);
    cli::Json json;
    EXPECT_TRUE(WaitUntil([&] {
      json = ReadReady(ready);
      return json.is_object();
    })) << name
        << ": " << running.process->Err();
    running.address = json.value("address", "");
    running.metrics = json.value("metrics", "");
    return running;
  }

  const std::string model_;
  TempDir proxy_dir_;
  Running tail_;
  std::unique_ptr<Process> proxy_;
  Running first_;
  Running router_;
  std::unique_ptr<v1::RouterService::Stub> stub_;
};

// Rows of a generation that runs the whole sequence for every token.
uint64_t RowsWithoutACache(const Answer& answer) {
  return kTokens * answer.finished.usage().prompt_tokens() + kTokens * (kTokens - 1) / 2;
}

// The real model, since its text gives the same ids when it is tokenised again; noise does not.
TEST(MixedFleet, ATailWithoutTokenIdsAnswersTheSameTextAtTheOldCost) {
  Mesh mesh(RealModel());
  ASSERT_TRUE(mesh.started());
  const Answer undisturbed = Generate(mesh.router(), kPrompt, kTokens);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;
  Fleet fleet(RealModel(), "--without-token-ids");
  const Answer answer = Generate(fleet.router(), kPrompt, kTokens);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text, undisturbed.text);
  EXPECT_EQ(fleet.TokensRun(), RowsWithoutACache(answer));
}

TEST(MixedFleet, AShardThatKeepsNoStateMakesTheRouteStatelessAndTheIdsStay) {
  Mesh mesh(TinyModel());
  ASSERT_TRUE(mesh.started());
  const Answer undisturbed = Generate(mesh.router(), kPrompt, kTokens);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;
  Fleet fleet(TinyModel(), "--without-kv-cache");
  EXPECT_TRUE(fleet.Status().stateless());
  const Answer answer = Generate(fleet.router(), kPrompt, kTokens);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.ids, undisturbed.ids);
  EXPECT_EQ(fleet.TokensRun(), RowsWithoutACache(answer));
}

}  // namespace
}  // namespace kvmesh::process_testing
