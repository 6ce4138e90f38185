// One real shard, or two, over the wire: generation, ends, inspection, watch, drain.
#include <gtest/gtest.h>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/rpc/shard/shard_fixture.h"

namespace kvmesh::shard {
namespace {

using forward::CacheMode;
using forward::Close;
using forward::Disposition;

TEST_F(ShardServerTest, GeneratesWhatAnUndisturbedRunGives) {
  const TestShard shard = StartWhole();
  ForwardClient client(*shard.stub);
  client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
  EXPECT_EQ(Generate(client, kPrompt, 8, kAll), testing::ToyGenerate(kPrompt, 8));
  EXPECT_EQ(GetSession(shard, 1)->state(), v1::SESSION_STATE_LIVE);
  client.Send(Close{Disposition::kDrop});
  EXPECT_TRUE(client.End().ok());
  EXPECT_FALSE(GetSession(shard, 1).has_value());
  EXPECT_EQ(Metric(shard, "steps_total"), 8);
}

TEST_F(ShardServerTest, TwoShardsGiveWhatOneGives) {
  const LayerRange first{0, 2};
  const LayerRange second{2, kLayers};
  const TestShard tail = StartShard(clock_, {.layers = second});
  const TestShard head = StartShard(clock_, {.layers = first}, {.peers = {tail.address}});
  ForwardClient client(*head.stub);
  client.Send(MakeOpen({Ref(head, first), Ref(tail, second)}, 1, kPrompt));
  EXPECT_EQ(Generate(client, kPrompt, 8, first), testing::ToyGenerate(kPrompt, 8));
  client.Send(Close{Disposition::kDrop});
  EXPECT_TRUE(client.End().ok());
  EXPECT_FALSE(GetSession(head, 1).has_value());
  EXPECT_FALSE(GetSession(tail, 1).has_value());
}

TEST(PeerChannels, AStreamHasAConnectionToItselfAndLeavesItToTheNextOne) {
  PeerChannels channels(2);
  const auto first = channels.Take("127.0.0.1:1");
  const auto second = channels.Take("127.0.0.1:1");
  EXPECT_NE(first, second);
  channels.Return("127.0.0.1:1", first, /*broken=*/false);
  EXPECT_NE(channels.Take("127.0.0.1:2"), first);  // that is another peer
  EXPECT_EQ(channels.Take("127.0.0.1:1"), first);
}

TEST(PeerChannels, ABrokenConnectionTakesTheIdleOnesToThatPeerWithIt) {
  PeerChannels channels(8);
  const auto first = channels.Take("127.0.0.1:1");
  const auto second = channels.Take("127.0.0.1:1");
  const auto other = channels.Take("127.0.0.1:2");
  channels.Return("127.0.0.1:1", first, /*broken=*/false);
  channels.Return("127.0.0.1:2", other, /*broken=*/false);
  channels.Return("127.0.0.1:1", second, /*broken=*/true);
  const auto fresh = channels.Take("127.0.0.1:1");
  EXPECT_NE(fresh, first);
  EXPECT_NE(fresh, second);
  EXPECT_EQ(channels.Take("127.0.0.1:2"), other);
}

TEST(PeerChannels, IdleConnectionsAreBounded) {
  PeerChannels channels(2);
  std::vector<std::weak_ptr<grpc::Channel>> all;
  for (int peer = 1; peer <= 10; ++peer) {
    auto channel = channels.Take(absl::StrCat("127.0.0.1:", peer));
    all.push_back(channel);
    channels.Return(absl::StrCat("127.0.0.1:", peer), std::move(channel), /*broken=*/false);
  }
  EXPECT_LE(std::count_if(all.begin(), all.end(), [](const auto& c) { return !c.expired(); }), 2);
}

TEST_F(ShardServerTest, AForeignAddressIsNeverDialled) {
  const LayerRange first{0, 2};
  const LayerRange second{2, kLayers};
  const TestShard tail = StartShard(clock_, {.layers = second});
  const TestShard head = StartShard(clock_, {.layers = first}, {.peers = {"127.0.0.1:1"}});
  ForwardClient client(*head.stub);
  client.Send(MakeOpen({Ref(head, first), Ref(tail, second)}, 1, kPrompt));
  EXPECT_EQ(ReasonOf(client.End()), reason::kForbiddenPeer);
}

TEST_F(ShardServerTest, ADeadNextHopIsNamedAndTheStateHereIsKept) {
  const LayerRange first{0, 2};
  const LayerRange second{2, kLayers};
  TestShard tail = StartShard(clock_, {.layers = second});
  const TestShard head = StartShard(clock_, {.layers = first}, {.peers = {tail.address}});
  ForwardClient client(*head.stub);
  client.Send(MakeOpen({Ref(head, first), Ref(tail, second)}, 1, kPrompt));
  ASSERT_EQ(Generate(client, kPrompt, 2, first).size(), 2u);
  tail.server.reset();
  const absl::Status end = client.End();
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
  std::optional<ErrorInfo> info = ErrorInfoOf(end);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason, reason::kHopUnavailable);
  EXPECT_EQ(info->metadata["address"], tail.address);
  EXPECT_EQ(GetSession(head, 1)->state(), v1::SESSION_STATE_ORPHANED);
}

TEST_F(ShardServerTest, ACancelledStreamLeavesAnOrphanThatIsGoneAfterItsTtl) {
  const TestShard shard = StartWhole();
  ForwardClient client(*shard.stub);
  client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
  ASSERT_EQ(Generate(client, kPrompt, 2, kAll).size(), 2u);
  client.Cancel();
  EXPECT_TRUE(
      Eventually([&] { return GetSession(shard, 1)->state() == v1::SESSION_STATE_ORPHANED; }));
  clock_.Advance(absl::Seconds(31));
  EXPECT_FALSE(GetSession(shard, 1).has_value());
  EXPECT_EQ(Metric(shard, "evictions_total", {{"cause", "orphan_ttl"}}), 1);
}

TEST_F(ShardServerTest, ACancelInPrefillStopsAtTheNextLayer) {
  const TestShard shard = StartWhole();
  ForwardClient client(*shard.stub);
  client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
  gate_.Close();
  client.Send(MakeFrame(CacheMode::kPrefill, kPrompt, 0, 0, kAll));
  ASSERT_TRUE(Eventually([&] { return gate_.held(); }));
  client.Cancel();
  ASSERT_TRUE(
      Eventually([&] { return GetSession(shard, 1)->state() == v1::SESSION_STATE_ORPHANED; }));
  gate_.Open();
  EXPECT_TRUE(Eventually([&] { return Metric(shard, "steps_cancelled_total") == 1; }));
  EXPECT_EQ(GetSession(shard, 1)->bytes(), 0u);
}

TEST_F(ShardServerTest, AStepWhoseStreamIsLostIsAnsweredOnTheNextAttemptWithoutRunningAgain) {
  const TestShard shard = StartWhole();
  const std::vector<uint32_t> expected = testing::ToyGenerate(kPrompt, 2);
  std::vector<uint32_t> all = kPrompt;
  all.push_back(expected[0]);
  {
    ForwardClient client(*shard.stub);
    client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
    ASSERT_EQ(Generate(client, kPrompt, 1, kAll).size(), 1u);
    gate_.Close();
    client.Send(MakeFrame(CacheMode::kDecode, all, kPrompt.size(), 1, kAll));
    ASSERT_TRUE(Eventually([&] { return gate_.held(); }));
    client.Cancel();
    ASSERT_TRUE(
        Eventually([&] { return GetSession(shard, 1)->state() == v1::SESSION_STATE_ORPHANED; }));
    gate_.Open();
  }
  ASSERT_TRUE(Eventually([&] { return GetSession(shard, 1)->held() == 5; }));
  ForwardClient retry(*shard.stub);
  retry.Send(MakeOpen({Ref(shard, kAll)}, 1, all, 1, 2));
  retry.Send(MakeFrame(CacheMode::kDecode, all, kPrompt.size(), 1, kAll));
  EXPECT_EQ(retry.ReadToken(), expected[1]);
  EXPECT_EQ(Metric(shard, "replays_total"), 1);
  EXPECT_EQ(Metric(shard, "steps_total"), 2);
}

TEST_F(ShardServerTest, ADeadlineInDecodeEndsTheCallAndOrphansTheSession) {
  const TestShard shard = StartWhole();
  {
    ForwardClient client(*shard.stub, absl::Milliseconds(300));
    client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
    gate_.Close();
    client.Send(MakeFrame(CacheMode::kPrefill, kPrompt, 0, 0, kAll));
    EXPECT_EQ(client.End().code(), absl::StatusCode::kDeadlineExceeded);
  }
  gate_.Open();
  EXPECT_TRUE(Eventually([&] {
    const auto session = GetSession(shard, 1);
    return !session.has_value() || session->state() == v1::SESSION_STATE_ORPHANED;
  }));
}

TEST_F(ShardServerTest, GetSessionAnswersWhileAStepRuns) {
  const TestShard shard = StartWhole();
  ForwardClient client(*shard.stub);
  client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
  gate_.Close();
  client.Send(MakeFrame(CacheMode::kPrefill, kPrompt, 0, 0, kAll));
  ASSERT_TRUE(Eventually([&] { return gate_.held(); }));
  EXPECT_EQ(GetSession(shard, 1)->state(), v1::SESSION_STATE_LIVE);
  gate_.Open();
  EXPECT_EQ(client.ReadToken(), testing::ToyGenerate(kPrompt, 1)[0]);
}

TEST_F(ShardServerTest, ACacheMissIsToldWithItsCauseAndCounted) {
  const TestShard shard = StartWhole();
  ForwardClient client(*shard.stub);
  client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
  client.Send(MakeFrame(CacheMode::kDecode, kPrompt, 3, 1, kAll));
  std::optional<ErrorInfo> info = ErrorInfoOf(client.End());
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason, reason::kCacheMiss);
  EXPECT_EQ(info->metadata["cause"], "unknown_session");
  EXPECT_EQ(Metric(shard, "cache_misses_total", {{"cause", "unknown_session"}}), 1);
}

TEST_F(ShardServerTest, DrainEndsStreamsRefusesNewOnesAndIsNotServing) {
  const TestShard shard = StartWhole();
  auto health = grpc::health::v1::Health::NewStub(rpc::MakeChannel(shard.address));
  const auto serving = [&] {
    grpc::ClientContext context;
    SetDeadline(context);
    grpc::health::v1::HealthCheckResponse response;
    return health->Check(&context, {}, &response).ok() &&
           response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  };
  EXPECT_TRUE(Eventually(serving));
  ForwardClient client(*shard.stub);
  client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
  ASSERT_EQ(Generate(client, kPrompt, 2, kAll).size(), 2u);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ShardServiceDrainResponse drained;
  ASSERT_TRUE(shard.stub->Drain(&context, {}, &drained).ok());
  std::optional<ErrorInfo> info = ErrorInfoOf(client.End());
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason, reason::kDraining);
  EXPECT_EQ(info->metadata["held"], "5");
  ForwardClient late(*shard.stub);
  late.Send(MakeOpen({Ref(shard, kAll)}, 2, kPrompt));
  EXPECT_EQ(ReasonOf(late.End()), reason::kDraining);
  EXPECT_TRUE(Eventually([&] { return !serving(); }));
  EXPECT_TRUE(shard.server->WaitUntilQuiet(kPatience));
}

// Not serving after a minute; not worth keeping after two.
TEST_F(ShardServerTest, AFrameThatRunsForTooLongMakesHealthNotServing) {
  const TestShard shard = StartWhole();
  auto health = grpc::health::v1::Health::NewStub(rpc::MakeChannel(shard.address));
  const auto good = [&](const char* service) {
    grpc::ClientContext context;
    SetDeadline(context);
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    return health->Check(&context, request, &response).ok() &&
           response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  };
  ForwardClient client(*shard.stub);
  client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
  gate_.Close();
  client.Send(MakeFrame(CacheMode::kPrefill, kPrompt, 0, 0, kAll));
  ASSERT_TRUE(Eventually([&] { return gate_.held(); }));
  EXPECT_TRUE(Eventually([&] { return good(""); }));
  clock_.Advance(absl::Seconds(61));
  EXPECT_TRUE(Eventually([&] { return !good(""); }));
  EXPECT_TRUE(good("liveness"));
  EXPECT_TRUE(Eventually([&] { return Metric(shard, "computing_seconds") >= 61; }));
  clock_.Advance(absl::Seconds(60));
  EXPECT_TRUE(Eventually([&] { return !good("liveness"); }));
  gate_.Open();
  EXPECT_TRUE(Eventually([&] { return good("") && good("liveness"); }));
  EXPECT_TRUE(Eventually([&] { return Metric(shard, "computing_seconds") == 0; }));
}

TEST_F(ShardServerTest, AnEngineThatCannotCacheMakesTheShardStateless) {
  const TestShard shard = StartShard(clock_, {.supports_kv_cache = false});
  ForwardClient client(*shard.stub);
  client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
  client.Send(MakeFrame(CacheMode::kPrefill, kPrompt, 0, 0, kAll));
  std::optional<ErrorInfo> info = ErrorInfoOf(client.End());
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->metadata["cause"], "caching_disabled");
  forward::Open open = MakeOpen({Ref(shard, kAll)}, 2, kPrompt);
  open.reserve_tokens.reset();
  ForwardClient stateless(*shard.stub);
  stateless.Send(open);
  forward::Compute frame = MakeFrame(CacheMode::kStateless, kPrompt, 0, 0, kAll);
  frame.past_len.reset();
  stateless.Send(frame);
  EXPECT_EQ(stateless.ReadToken(), testing::ToyGenerate(kPrompt, 1)[0]);
}

// Gives numbers that are not finite.
class BrokenEngine final : public Engine {
 public:
  const EngineInfo& info() const override { return sound_.info(); }
  SessionState NewState() const override { return sound_.NewState(); }
  void Step(absl::Span<StepItem> batch) override {
    sound_.Step(batch);
    for (StepItem& item : batch) item.logits[0] = std::numeric_limits<float>::quiet_NaN();
  }
  absl::StatusOr<std::vector<float>> Logits(absl::Span<const float> hidden) override {
    return sound_.Logits(hidden);
  }

 private:
  testing::ToyEngine sound_{testing::ToyOptions{}};
};

TEST(ShardServer, DoesNotStartWithAnEngineThatComputesNonsense) {
  const MonotonicClock clock;
  ShardServerOptions options;
  options.server.listen = "127.0.0.1:0";
  const auto server =
      ShardServer::Start(options, clock, std::make_unique<BrokenEngine>(),
                         std::make_unique<testing::ToyVocabulary>(), ToyDigests(kAll));
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace kvmesh::shard
