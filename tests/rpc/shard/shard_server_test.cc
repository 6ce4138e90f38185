// One real shard, or two, over the wire: generation, ends, inspection, watch, drain.
#include <gtest/gtest.h>

#include <atomic>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/rpc/shard/shard_fixture.h"

namespace kvmesh::shard {
namespace {

using forward::CacheMode;
using forward::Close;
using forward::Disposition;

constexpr LayerRange kAll{0, kLayers};
const std::vector<uint32_t> kPrompt = {5, 6, 7, 8};

double Metric(const TestShard& shard, const std::string& name, const metrics::Labels& labels = {}) {
  return shard.server->metrics().Value("kvmesh_shard_" + name, labels);
}

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kPatience));
}

// Holds the engine inside a step until it is let go.
class Gate {
 public:
  void Close() { closed_ = true; }
  void Open() { closed_ = false; }
  bool held() const { return held_; }
  void Pass() {
    if (!closed_) return;
    held_ = true;
    EXPECT_TRUE(Eventually([this] { return !closed_; }));
    held_ = false;
  }

 private:
  std::atomic<bool> closed_{false};
  std::atomic<bool> held_{false};
};

class ShardServerTest : public ::testing::Test {
 protected:
  TestShard StartWhole(ShardServerOptions options = {}) {
    return StartShard(clock_, {.on_layer = [this](uint32_t) { gate_.Pass(); }}, options);
  }

  testing::ShiftedClock clock_;
  Gate gate_;
};

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

TEST_F(ShardServerTest, ListsSessionsInPagesAndDropsThem) {
  const TestShard shard = StartWhole();
  std::vector<std::unique_ptr<ForwardClient>> clients;
  for (uint8_t session = 1; session <= 3; ++session) {
    clients.push_back(std::make_unique<ForwardClient>(*shard.stub));
    clients.back()->Send(MakeOpen({Ref(shard, kAll)}, session, kPrompt));
    ASSERT_TRUE(clients.back()->Read().has_value());
  }
  v1::ListSessionsRequest request;
  request.set_page_size(2);
  std::vector<std::string> ids;
  for (int page = 0; page < 2; ++page) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::ListSessionsResponse response;
    ASSERT_TRUE(shard.stub->ListSessions(&context, request, &response).ok());
    for (const auto& session : response.sessions()) ids.push_back(session.session_id());
    request.set_page_token(response.next_page_token());
  }
  EXPECT_EQ(ids,
            (std::vector<std::string>{Session(1).ToHex(), Session(2).ToHex(), Session(3).ToHex()}));
  EXPECT_TRUE(request.page_token().empty());

  grpc::ClientContext context;
  SetDeadline(context);
  v1::DropSessionRequest drop;
  drop.set_session_id(Session(2).ToHex());
  drop.set_epoch(1);
  v1::DropSessionResponse dropped;
  ASSERT_TRUE(shard.stub->DropSession(&context, drop, &dropped).ok());
  EXPECT_TRUE(dropped.dropped());
  EXPECT_EQ(ReasonOf(clients[1]->End()), reason::kSuperseded);
  EXPECT_FALSE(GetSession(shard, 2).has_value());
}

TEST_F(ShardServerTest, InspectionRefusesWhatItCannotRead) {
  const TestShard shard = StartWhole();
  v1::GetSessionRequest request;
  request.set_session_id("xyz");
  v1::GetSessionResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_EQ(shard.stub->GetSession(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::ListSessionsRequest list;
  list.set_page_size(limits::kListPageMax + 1);
  v1::ListSessionsResponse listed;
  grpc::ClientContext list_context;
  SetDeadline(list_context);
  EXPECT_EQ(shard.stub->ListSessions(&list_context, list, &listed).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ShardServerTest, WatchTellsFactsAtOnceChangesAndHeartbeats) {
  const TestShard shard = StartWhole({.sessions_max = 5});
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchRequest request;
  request.mutable_heartbeat()->set_value(100);
  auto watch = shard.stub->Watch(&context, request);
  v1::WatchResponse facts;
  ASSERT_TRUE(watch->Read(&facts));
  EXPECT_EQ(facts.instance_id(), std::string(shard.server->instance().bytes()));
  EXPECT_EQ(facts.layers().end(), kLayers);
  EXPECT_EQ(facts.layer_digests_size(), static_cast<int>(kLayers));
  EXPECT_EQ(facts.quant(), testing::kToyQuant);
  EXPECT_TRUE(facts.supports_kv_cache());
  EXPECT_EQ(facts.capacity().sessions_max(), 5u);
  EXPECT_EQ(facts.live_sessions(), 0u);
  ForwardClient client(*shard.stub);
  client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
  while (facts.live_sessions() == 0) ASSERT_TRUE(watch->Read(&facts));
  ASSERT_TRUE(watch->Read(&facts));  // a heartbeat: nothing has changed
  shard.server->Drain();
  while (!facts.draining()) ASSERT_TRUE(watch->Read(&facts));
}

TEST_F(ShardServerTest, WatchRefusesAHeartbeatOutOfRange) {
  const TestShard shard = StartWhole();
  for (const uint64_t millis : {99, 60001}) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::WatchRequest request;
    request.mutable_heartbeat()->set_value(millis);
    auto watch = shard.stub->Watch(&context, request);
    v1::WatchResponse facts;
    EXPECT_FALSE(watch->Read(&facts));
    EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
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

TEST_F(ShardServerTest, AFrameThatRunsForTooLongMakesHealthNotServing) {
  const TestShard shard = StartWhole();
  auto health = grpc::health::v1::Health::NewStub(rpc::MakeChannel(shard.address));
  const auto serving = [&] {
    grpc::ClientContext context;
    SetDeadline(context);
    grpc::health::v1::HealthCheckResponse response;
    return health->Check(&context, {}, &response).ok() &&
           response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  };
  ForwardClient client(*shard.stub);
  client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
  gate_.Close();
  client.Send(MakeFrame(CacheMode::kPrefill, kPrompt, 0, 0, kAll));
  ASSERT_TRUE(Eventually([&] { return gate_.held(); }));
  EXPECT_TRUE(Eventually(serving));
  clock_.Advance(absl::Seconds(61));
  EXPECT_TRUE(Eventually([&] { return !serving(); }));
  gate_.Open();
  EXPECT_TRUE(Eventually(serving));
}

TEST_F(ShardServerTest, DescribeTellsSizes) {
  const TestShard shard = StartWhole({.threads = 3});
  grpc::ClientContext context;
  SetDeadline(context);
  v1::DescribeResponse description;
  ASSERT_TRUE(shard.stub->Describe(&context, {}, &description).ok());
  EXPECT_EQ(description.threads(), 3u);
  EXPECT_EQ(description.shard().capacity().bytes_per_token(), 64u * kLayers);
  ASSERT_EQ(description.state_bytes_size(), 1);
  EXPECT_EQ(description.state_bytes(0).kind(), "key_value");
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

TEST(PeerBook, AllowsOnlyItsNames) {
  const PeerBook book({"10.0.0.1:7000", "10.0.0.2", "[::1]:7000", "shards.invalid:7000"});
  EXPECT_TRUE(book.Allows("10.0.0.1:7000"));
  EXPECT_FALSE(book.Allows("10.0.0.1:7001"));
  EXPECT_TRUE(book.Allows("10.0.0.2:1"));
  EXPECT_TRUE(book.Allows("[::1]:7000"));
  EXPECT_TRUE(book.Allows("shards.invalid:7000"));
  EXPECT_FALSE(book.Allows("10.0.0.3:7000"));
  EXPECT_FALSE(book.Allows(""));
  EXPECT_FALSE(PeerBook({}).Allows("10.0.0.1:7000"));
  EXPECT_TRUE(PeerBook({"*"}).Allows("anything:1"));
}

TEST(PeerBook, ResolvesNamesInTheBackground) {
  const PeerBook book({"localhost:7000"});
  EXPECT_TRUE(Eventually([&] { return book.Allows("127.0.0.1:7000"); }));
  EXPECT_FALSE(book.Allows("127.0.0.1:7001"));
}

}  // namespace
}  // namespace kvmesh::shard
