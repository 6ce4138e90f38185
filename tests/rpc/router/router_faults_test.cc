// Faults between router and shards that a client must not notice.
#include <atomic>

#include "common/base/error_info.h"
#include "tests/rpc/router/router_fixture.h"

namespace kvmesh::router {
namespace {

class RouterFaults : public RouterFixture {
 protected:
  static constexpr uint32_t kTokens = 6;
  void ExpectUndisturbed(const Answer& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.token_ids, FakeGenerate(Ids("abc"), kTokens));
  }
  // Ends the stream with `status` the first time that step 3 comes.
  static std::function<grpc::Status(const v1::Compute&)> FailOnceAtStep3(grpc::Status status) {
    auto failed = std::make_shared<std::atomic<bool>>(false);
    return [failed, status](const v1::Compute& compute) {
      return compute.step() == 3 && !failed->exchange(true) ? status : grpc::Status::OK;
    };
  }
};

TEST_F(RouterFaults, ABrokenStreamInDecodeCostsNoPrefill) {
  FakeShard shard({});
  shard.OnCompute(FailOnceAtStep3(grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone")));
  StartRouter({shard.address()});
  ExpectUndisturbed(Generate(Request("abc", kTokens)));
  EXPECT_EQ(Metric("link_retries_total"), 1);
  EXPECT_EQ(Metric("reprefills_total"), 0);
  ASSERT_EQ(shard.opens().size(), 2u);
  EXPECT_EQ(shard.opens()[1].epoch(), 1u);
  EXPECT_EQ(shard.opens()[1].attempt(), 2u);
}

TEST_F(RouterFaults, ACacheMissCostsOnePrefillAndIsCountedByCause) {
  FakeShard shard({});
  shard.OnCompute(FailOnceAtStep3(rpc::ToGrpc(WithErrorInfo(
      absl::AbortedError("miss"), {.reason = std::string(reason::kCacheMiss),
                                   .metadata = {{"cause", "evicted_lru"}, {"hop", "0"}}}))));
  StartRouter({shard.address()});
  const Answer answer = Generate(Request("abc", kTokens));
  ExpectUndisturbed(answer);
  EXPECT_EQ(answer.finished.usage().reprefills(), 1u);
  EXPECT_EQ(Metric("cache_misses_total", {{"cause", "evicted_lru"}}), 1);
  EXPECT_EQ(Metric("reprefills_total"), 1);
  ASSERT_EQ(shard.opens().size(), 2u);
  EXPECT_EQ(shard.opens()[0].session_id(), shard.opens()[1].session_id());
  EXPECT_EQ(shard.opens()[1].epoch(), 2u);
}

// A pod that was replaced: its name leads elsewhere, and nobody answers at the old address.
TEST_F(RouterFaults, ANameThatLeadsToAnotherAddressIsFollowed) {
  auto old_pod = std::make_unique<FakeShard>(FakeShard::Options{});
  Mutex mutex;
  std::string address = old_pod->address();
  options_.discovery.resolve_interval = absl::Milliseconds(20);
  options_.discovery.resolve =
      [&](const std::string& name) -> absl::StatusOr<std::vector<std::string>> {
    EXPECT_EQ(name, "shards.test:7000");
    MutexLock lock(&mutex);
    return std::vector<std::string>{address};
  };
  StartRouter({"shards.test:7000"});
  ASSERT_TRUE(WaitReady());
  ExpectUndisturbed(Generate(Request("abc", kTokens)));
  old_pod.reset();
  FakeShard new_pod({});
  {
    MutexLock lock(&mutex);
    address = new_pod.address();
  }
  ASSERT_TRUE(Eventually([&] {
    const v1::GetStatusResponse status = Status();
    return status.ready() && status.route(0).address() == new_pod.address();
  }));
  ExpectUndisturbed(Generate(Request("abc", kTokens)));
  EXPECT_EQ(Status().shards_size(), 1);
  router_.reset();  // before what its resolver refers to
}

TEST_F(RouterFaults, AShardThatDiesIsReplacedByItsReplica) {
  auto first = std::make_unique<FakeShard>(FakeShard::Options{});
  FakeShard second({});
  // Whichever is taken first dies at step 3.
  std::atomic<bool> first_dies{false};
  std::atomic<bool> died{false};
  first->OnCompute([&](const v1::Compute& compute) {
    if (compute.step() != 3 || died.exchange(true)) return grpc::Status::OK;
    first_dies = true;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "dying");
  });
  StartRouter({first->address(), second.address()});
  ASSERT_TRUE(Eventually([this] {
    const v1::GetStatusResponse status = Status();
    return status.shards_size() == 2 && status.shards(0).connected() &&
           status.shards(1).connected();
  }));
  std::thread killer([&] {
    if (Eventually([&] { return first_dies.load(); }, absl::Seconds(5))) first.reset();
  });
  ExpectUndisturbed(Generate(Request("abc", kTokens)));
  killer.join();
}

TEST_F(RouterFaults, ARestartedShardIsFoundAgainAtItsAddress) {
  auto shard = std::make_unique<FakeShard>(FakeShard::Options{});
  const int port = shard->port();
  StartRouter({shard->address()});
  ASSERT_TRUE(WaitReady());
  shard.reset();
  Answer answer;
  std::thread client([this, &answer] { answer = Generate(Request("abc", kTokens)); });
  EXPECT_TRUE(Eventually([this] { return !Status().ready(); }));
  shard = std::make_unique<FakeShard>(FakeShard::Options{.port = port});
  client.join();
  ExpectUndisturbed(answer);
}

TEST_F(RouterFaults, ARefusalWithADelayIsWaitedOut) {
  FakeShard shard({});
  shard.OnCompute(FailOnceAtStep3(rpc::ToGrpc(WithRetryDelay(
      WithErrorInfo(absl::ResourceExhaustedError("full"), {.reason = std::string(reason::kNoRoom)}),
      absl::Milliseconds(50)))));
  StartRouter({shard.address()});
  ExpectUndisturbed(Generate(Request("abc", kTokens)));
  EXPECT_EQ(Metric("refusals_total"), 1);
}

TEST_F(RouterFaults, ATailWithoutTokenIdsIsPrefilledEveryStep) {
  FakeShard shard({.token_ids = false});
  StartRouter({shard.address()});
  ExpectUndisturbed(Generate(Request("abc", kTokens)));
  const std::vector<v1::Open> opens = shard.opens();
  ASSERT_EQ(opens.size(), kTokens);
  for (size_t i = 0; i < opens.size(); ++i) EXPECT_EQ(opens[i].epoch(), i + 1);
}

TEST_F(RouterFaults, AShardWithoutACacheIsRunStateless) {
  FakeShard shard({.supports_kv_cache = false});
  std::atomic<int> stateful{0};
  shard.OnCompute([&stateful](const v1::Compute& compute) {
    if (compute.cache_mode() != v1::CACHE_MODE_UNSPECIFIED) ++stateful;
    return grpc::Status::OK;
  });
  StartRouter({shard.address()});
  ExpectUndisturbed(Generate(Request("abc", kTokens)));
  EXPECT_EQ(stateful, 0);
  EXPECT_FALSE(shard.opens()[0].has_reserve_tokens());
}

TEST_F(RouterFaults, AHungStepIsProbedAndGivenUpAtTheDeadline) {
  FakeShard shard({});
  Mutex mutex;
  CondVar wake;
  bool held = true;
  shard.OnCompute([&](const v1::Compute& compute) {
    MutexLock lock(&mutex);
    while (compute.step() == 3 && held) wake.WaitFor(&mutex, absl::Seconds(1));
    return grpc::Status::OK;
  });
  options_.registry.limits.step_watchdog_min = absl::Milliseconds(100);
  StartRouter({shard.address()});
  ASSERT_TRUE(WaitReady());
  const Answer answer = Generate(Request("abc", kTokens), absl::Seconds(3));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(Metric("watchdog_probes_total"), 1);
  {
    MutexLock lock(&mutex);
    held = false;
    wake.NotifyAll();
  }
  EXPECT_TRUE(Eventually([&shard] { return shard.open_streams() == 0; }));
}

}  // namespace
}  // namespace kvmesh::router
