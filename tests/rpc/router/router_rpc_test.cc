// RouterService as a client meets it.
#include "common/base/error_info.h"
#include "tests/rpc/router/router_fixture.h"

namespace kvmesh::router {
namespace {

using ::testing::HasSubstr;

class RouterRpc : public RouterFixture {};

TEST_F(RouterRpc, GenerateStreamsStartThenTextThenTheEnd) {
  FakeShard shard({});
  StartRouter({shard.address()});
  ASSERT_TRUE(WaitReady());
  v1::GenerateRequest request = Request("abc", 5);
  request.mutable_options()->set_return_token_ids(true);
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const std::vector<uint32_t> expected = FakeGenerate(Ids("abc"), 5);
  EXPECT_EQ(answer.token_ids, expected);
  EXPECT_EQ(answer.started.prompt_tokens(), 3u);
  EXPECT_EQ(answer.started.generation_id().size(), 32u);
  EXPECT_EQ(answer.text.size(), 5u);
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.finished.usage().completion_tokens(), 5u);
  EXPECT_EQ(answer.finished.usage().outcome(), "COLD");
  EXPECT_EQ(answer.finished.token_ids_size(), 5);
  EXPECT_EQ(answer.finished.timings().per_token_ms_size(), 5);
  EXPECT_TRUE(Eventually([&] { return shard.closes(v1::Close::DISPOSITION_DROP) == 1; }));
  EXPECT_EQ(shard.opens()[0].reserve_tokens(), 8u);
  EXPECT_EQ(Metric("generations_total", {{"result", "length"}}), 1);
}

TEST_F(RouterRpc, TokenIdsAreAcceptedAsAPrompt) {
  FakeShard shard({});
  StartRouter({shard.address()});
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(3);
  request.mutable_options()->set_max_tokens(2);
  EXPECT_EQ(Generate(request).token_ids, FakeGenerate({3}, 2));
}

TEST_F(RouterRpc, AStopStringEndsTheAnswerAndIsNotShown) {
  FakeShard shard({});
  StartRouter({shard.address()});
  const std::vector<uint32_t> ids = FakeGenerate(Ids("ab"), 3);
  v1::GenerateRequest request = Request("ab", 20);
  request.mutable_options()->add_stop(std::string(1, static_cast<char>('a' + ids[2])));
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_LE(answer.text.size(), 2u);
}

TEST_F(RouterRpc, APromptBeyondTheContextIsRefusedWithBothNumbers) {
  FakeShard shard({});
  StartRouter({shard.address()});
  const Answer answer = Generate(Request(std::string(75, 'a'), 1));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("75 tokens"));
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("64"));
  EXPECT_TRUE(shard.opens().empty());
  EXPECT_EQ(Generate(Request(std::string(60, 'a'), 5)).status.code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Generate(Request(std::string(60, 'a'), 4)).status.ok());
}

TEST_F(RouterRpc, RequestsOutOfRangeNameTheirField) {
  StartRouter({"127.0.0.1:1"});
  v1::GenerateRequest ids;
  ids.mutable_token_ids()->add_ids(kFakeVocab);
  v1::GenerateRequest stops = Request("a", 1);
  for (int i = 0; i < 17; ++i) stops.mutable_options()->add_stop("x");
  v1::GenerateRequest cache = Request("a", 1);
  cache.mutable_options()->set_cache(static_cast<v1::CacheUse>(9));
  v1::GenerateRequest heat = Request("a", 1);
  heat.mutable_options()->mutable_sampling()->set_temperature(-1);
  v1::GenerateRequest bias = Request("a", 1);
  bias.mutable_options()->mutable_sampling()->add_logit_bias()->set_token_id(99);
  const std::vector<std::pair<v1::GenerateRequest, std::string>> cases = {
      {v1::GenerateRequest(), "prompt"},
      {Request("", 1), "prompt"},
      {ids, "token_ids"},
      {stops, "stop"},
      {cache, "cache"},
      {heat, "temperature"},
      {bias, "logit_bias"}};
  for (const auto& [request, field] : cases) {
    const Answer answer = Generate(request);
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(answer.status.message()), HasSubstr(field));
  }
}

TEST_F(RouterRpc, ChatNeedsATemplate) {
  StartRouter({"127.0.0.1:1"});
  grpc::ClientContext context;
  v1::ChatRequest request;
  request.mutable_input()->add_messages()->set_role("user");
  const auto reader = stub_->Chat(&context, request);
  v1::ChatResponse event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(RouterRpc, TokenizeAndDetokenizeAreInverse) {
  StartRouter({"127.0.0.1:1"});
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text("abz");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&context, request, &tokens).ok());
  EXPECT_EQ(tokens.ids_size(), 3);
  EXPECT_EQ(tokens.pieces(2), "z");
  grpc::ClientContext back_context;
  v1::DetokenizeRequest back;
  *back.mutable_ids() = tokens.ids();
  back.add_ids(kFakeVocab - 1);
  back.set_skip_special_tokens(true);
  v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&back_context, back, &text).ok());
  EXPECT_EQ(text.text(), "abz");
  EXPECT_EQ(text.text_bytes(), "abz");
}

TEST_F(RouterRpc, WithoutShardsTheCallIsUnavailableAndNamesTheLayers) {
  StartRouter({"127.0.0.1:1"});
  const Answer answer = Generate(Request("a", 1), absl::Seconds(2));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("[0,4)"));
}

TEST_F(RouterRpc, ShardsThatDoNotFitTogetherAreShownFromBothSides) {
  FakeShard first({.layers = {0, 2}});
  FakeShard second({.layers = {2, 4}, .quant = "other"});
  StartRouter({first.address(), second.address()});
  ASSERT_TRUE(Eventually([this] {
    const v1::GetStatusResponse status = Status();
    return status.shards_size() == 2 && status.shards(0).connected() &&
           status.shards(1).connected();
  }));
  const Answer answer = Generate(Request("a", 1));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("fake at "));
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("other at "));
}

TEST_F(RouterRpc, StatusShowsRouteShardsAndWhatIsMissing) {
  FakeShard first({.layers = {0, 2}});
  StartRouter({first.address(), "127.0.0.1:1"});
  ASSERT_TRUE(Eventually(
      [this] { return Status().missing_size() == 1 && Status().missing(0).begin() == 2; }));
  EXPECT_FALSE(Status().ready());
  FakeShard second({.layers = {2, 4}});
  router_.reset();
  StartRouter({first.address(), second.address(), "127.0.0.1:1"});
  ASSERT_TRUE(WaitReady());
  const v1::GetStatusResponse status = Status();
  EXPECT_EQ(status.route_size(), 2);
  EXPECT_EQ(status.shards_size(), 3);
  EXPECT_EQ(status.model_fp().size(), 64u);
  EXPECT_EQ(status.layer_count(), kFakeLayers);
  EXPECT_EQ(status.missing_size(), 0);
}

TEST_F(RouterRpc, HealthFollowsTheRoute) {
  auto shard = std::make_unique<FakeShard>(FakeShard::Options{});
  const int port = shard->port();
  shard.reset();
  StartRouter({absl::StrCat("127.0.0.1:", port)});
  const auto health = grpc::health::v1::Health::NewStub(channel_);
  const auto serving = [&health] {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    return health->Check(&context, {}, &response).ok() &&
           response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  };
  EXPECT_FALSE(serving());
  shard = std::make_unique<FakeShard>(FakeShard::Options{.port = port});
  EXPECT_TRUE(Eventually(serving));
  shard.reset();
  EXPECT_TRUE(Eventually([&serving] { return !serving(); }));
}

// All threads for long work are held by two texts while a third caller goes away.
class RouterLongWork : public RouterFixture {
 protected:
  void SetUp() override {
    on_encode_ = [this](absl::string_view text) {
      MutexLock lock(&mutex_);
      if (text == "z") ++late_encoded_;
      if (text != "a") return;
      ++holding_;
      while (held_) wake_.WaitFor(&mutex_, absl::Seconds(1));
      --holding_;
    };
  }
  void SetHeld(bool held) {
    MutexLock lock(&mutex_);
    held_ = held;
    wake_.NotifyAll();
  }
  int holding() {
    MutexLock lock(&mutex_);
    return holding_;
  }
  int late_encoded() {
    MutexLock lock(&mutex_);
    return late_encoded_;
  }
  grpc::StatusCode Tokenize(const std::string& text) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_text(text);
    v1::TokenizeResponse response;
    return stub_->Tokenize(&context, request, &response).error_code();
  }

  // True: the text of the caller that went away was not looked at.
  bool RoundSkipsTheLateText() {
    SetHeld(true);
    const int before = late_encoded();
    std::vector<std::thread> holders;
    for (int i = 0; i < 2; ++i) holders.emplace_back([this] { Tokenize("a"); });
    EXPECT_TRUE(Eventually([this] { return holding() == 2; }));
    {
      grpc::ClientContext context;
      const auto reader = stub_->Generate(&context, Request("z", 1));
      Status();  // on the same connection: the request has arrived
      context.TryCancel();
      EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
      Status();  // and so has the end of it
    }
    SetHeld(false);
    for (std::thread& holder : holders) holder.join();
    // The queue is in order: when this text has had its turn, so has the late one.
    for (int i = 0; i < 2; ++i) EXPECT_EQ(Tokenize("b"), grpc::StatusCode::OK);
    return late_encoded() == before;
  }

  Mutex mutex_;
  CondVar wake_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  int holding_ ABSL_GUARDED_BY(mutex_) = 0;
  int late_encoded_ ABSL_GUARDED_BY(mutex_) = 0;
};

// In rounds, since the server may hear of the cancel only after the threads are free again.
TEST_F(RouterLongWork, TheTextOfACallerThatWentAwayWhileQueuedIsNotTokenised) {
  StartRouter({"127.0.0.1:1"});
  EXPECT_TRUE(Eventually([this] { return RoundSkipsTheLateText(); }));
}

// A shard that holds every answer back until released.
class RouterQueue : public RouterFixture {
 protected:
  void Hold() {
    shard_.OnCompute([this](const v1::Compute&) {
      MutexLock lock(&mutex_);
      while (held_) wake_.WaitFor(&mutex_, absl::Seconds(1));
      return grpc::Status::OK;
    });
  }
  void Release() {
    MutexLock lock(&mutex_);
    held_ = false;
    wake_.NotifyAll();
  }
  void TearDown() override { Release(); }

  FakeShard shard_{{}};
  Mutex mutex_;
  CondVar wake_;
  bool held_ ABSL_GUARDED_BY(mutex_) = true;
};

TEST_F(RouterQueue, AFullQueueRefusesWithADelayAndTheQueuedOnesRunInTurn) {
  options_.registry.generations_max = 1;
  options_.registry.queue_max = 1;
  StartRouter({shard_.address()});
  ASSERT_TRUE(WaitReady());
  Hold();
  std::vector<std::thread> clients;
  std::vector<Answer> answers(2);
  for (size_t i = 0; i < 2; ++i) {
    clients.emplace_back([this, &answers, i] { answers[i] = Generate(Request("a", 2)); });
    ASSERT_TRUE(Eventually([this, i] {
      return Status().generations_running() + Status().generations_queued() == i + 1;
    }));
  }
  const Answer refused = Generate(Request("a", 2));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused.status), reason::kQueueFull);
  EXPECT_TRUE(RetryDelayOf(refused.status).has_value());
  Release();
  for (std::thread& client : clients) client.join();
  for (const Answer& answer : answers) {
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.token_ids, FakeGenerate({0}, 2));
  }
}

TEST_F(RouterQueue, CancelGenerationEndsOneByItsId) {
  StartRouter({shard_.address()});
  ASSERT_TRUE(WaitReady());
  Hold();
  Answer answer;
  std::thread client([this, &answer] { answer = Generate(Request("a", 2)); });
  v1::ListGenerationsResponse list;
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    return stub_->ListGenerations(&context, {}, &list).ok() && list.generations_size() == 1 &&
           list.generations(0).state() == "prefill";
  }));
  v1::CancelGenerationRequest request;
  request.set_generation_id(list.generations(0).generation_id());
  v1::CancelGenerationResponse response;
  grpc::ClientContext context;
  EXPECT_TRUE(stub_->CancelGeneration(&context, request, &response).ok());
  client.join();
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kCancelled);
  Release();
  EXPECT_TRUE(Eventually([this] { return shard_.closes(v1::Close::DISPOSITION_DROP) == 1; }));
  request.set_generation_id(std::string(32, '0'));
  grpc::ClientContext unknown;
  EXPECT_EQ(stub_->CancelGeneration(&unknown, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(RouterQueue, AClientThatGoesAwayEndsItsGeneration) {
  StartRouter({shard_.address()});
  ASSERT_TRUE(WaitReady());
  Hold();
  {
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, Request("a", 2));
    v1::GenerateResponse event;
    EXPECT_TRUE(reader->Read(&event));
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([this] {
    return Metric("generations_total", {{"result", "CANCELLED"}}) == 1;
  }));
  EXPECT_EQ(Status().generations_running(), 0u);
  Release();
  EXPECT_TRUE(Eventually([this] { return shard_.open_streams() == 0; }));
}

TEST_F(RouterQueue, DrainLetsRunningGenerationsEndAndRefusesNewOnes) {
  StartRouter({shard_.address()});
  ASSERT_TRUE(WaitReady());
  Hold();
  Answer answer;
  std::thread client([this, &answer] { answer = Generate(Request("a", 3)); });
  ASSERT_TRUE(Eventually([this] { return Status().generations_running() == 1; }));
  grpc::ClientContext context;
  v1::RouterServiceDrainResponse response;
  ASSERT_TRUE(stub_->Drain(&context, {}, &response).ok());
  EXPECT_TRUE(Status().draining());
  EXPECT_EQ(Generate(Request("a", 1)).status.code(), absl::StatusCode::kUnavailable);
  Release();
  router_->Drain(absl::Seconds(30));
  client.join();
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.token_ids, FakeGenerate({0}, 3));
}

}  // namespace
}  // namespace kvmesh::router
