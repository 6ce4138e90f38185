// RouterService as a client meets it.
#include "common/base/error_info.h"
#include "tests/rpc/router/router_fixture.h"
#include "tests/testing/bad_text.h"

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

TEST_F(RouterRpc, RequestsThatAreNotUtf8NameTheirFieldAndAreCounted) {
  StartRouter({"127.0.0.1:1"});
  testing::ExpectBadTextIsRefused(channel_, "kvmesh.v1.RouterService");
  for (const char* method :
       {"Generate", "Chat", "Tokenize", "RenderChat", "CancelGeneration", "ListGenerations"}) {
    EXPECT_GE(Metric("rpcs_total", {{"rpc", method}, {"code", "INVALID_ARGUMENT"}}), 1) << method;
  }
  const std::string detokenize = "/kvmesh.v1.RouterService/Detokenize";
  EXPECT_EQ(testing::CallRaw(channel_, detokenize, "\xff").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(testing::CallRaw(channel_, detokenize, "").ok());
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
  options_.generation_time_max = absl::Seconds(2);  // long before the client gives up
  StartRouter({"127.0.0.1:1"});
  const Answer answer = Generate(Request("a", 1));
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

}  // namespace
}  // namespace kvmesh::router
