// A real RouterServer over fake shards, and a client of it.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "services/router/grpc/router_server.h"
#include "tests/rpc/router/fake_shard.h"
#include "tests/testing/fake_tokenizer.h"

namespace kvmesh::router {

// Polls, since what it waits for is told to nobody; bounded.
inline bool Eventually(const std::function<bool()>& condition,
                       absl::Duration limit = absl::Seconds(30)) {
  const absl::Time until = absl::Now() + limit;
  while (!condition()) {
    if (absl::Now() > until) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

struct Answer {
  absl::Status status;
  v1::Started started;
  std::string text;
  std::vector<uint32_t> token_ids;
  v1::Finished finished;
};

// What an undisturbed generation gives.
inline std::vector<uint32_t> FakeGenerate(std::vector<uint32_t> prompt, size_t tokens) {
  const size_t begin = prompt.size();
  while (prompt.size() < begin + tokens) prompt.push_back(FakeNext(prompt));
  return {prompt.begin() + static_cast<ptrdiff_t>(begin), prompt.end()};
}

class RouterFixture : public ::testing::Test {
 protected:
  static RouterModel Model(testing::FakeTokenizer::OnEncode on_encode = nullptr) {
    std::vector<std::string> pieces;
    for (char c = 'a'; c <= 'z'; ++c) pieces.emplace_back(1, c);
    pieces.emplace_back("<eos>");
    RouterModel model{.tokenizer = std::make_shared<testing::FakeTokenizer>(
                          pieces, std::set<uint32_t>{kFakeVocab - 1}, std::move(on_encode)),
                      .identity = FakeIdentity(),
                      .vocab_size = kFakeVocab,
                      .context_length = 64,
                      .eos_token_ids = {kFakeVocab - 1}};
    return model;
  }

  void StartRouter(std::vector<std::string> shards) {
    options_.server.listen = "127.0.0.1:0";
    options_.discovery.names = std::move(shards);
    options_.discovery.heartbeat = absl::Milliseconds(200);
    absl::StatusOr<std::unique_ptr<RouterServer>> router =
        RouterServer::Start(options_, Model(on_encode_), clock_);
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    channel_ = rpc::MakeChannel(absl::StrCat("127.0.0.1:", router_->port()));
    stub_ = v1::RouterService::NewStub(channel_);
  }

  v1::GetStatusResponse Status() {
    grpc::ClientContext context;
    v1::GetStatusResponse response;
    EXPECT_TRUE(stub_->GetStatus(&context, {}, &response).ok());
    return response;
  }
  bool WaitReady() {
    return Eventually([this] { return Status().ready(); });
  }
  double Metric(const std::string& name, const metrics::Labels& labels = {}) {
    return router_->metrics().Value("kvmesh_router_" + name, labels);
  }

  static v1::GenerateRequest Request(const std::string& text, uint32_t max_tokens) {
    v1::GenerateRequest request;
    request.set_text(text);
    request.mutable_options()->set_max_tokens(max_tokens);
    return request;
  }
  static std::vector<uint32_t> Ids(const std::string& text) {
    std::vector<uint32_t> ids;
    for (const char c : text) ids.push_back(static_cast<uint32_t>(c - 'a'));
    return ids;
  }
  Answer Generate(const v1::GenerateRequest& request, absl::Duration deadline = absl::Seconds(60)) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
    return Read(*stub_->Generate(&context, request));
  }
  template <typename Reader>
  static Answer Read(Reader& reader) {
    Answer answer;
    v1::GenerateResponse event;
    while (reader.Read(&event)) {
      if (event.has_started()) answer.started = event.started();
      if (event.has_finished()) answer.finished = event.finished();
      answer.text += event.delta().text();
      for (const uint32_t id : event.delta().token_ids()) answer.token_ids.push_back(id);
    }
    answer.status = rpc::FromGrpc(reader.Finish());
    return answer;
  }

  MonotonicClock clock_;
  RouterOptions options_;
  testing::FakeTokenizer::OnEncode on_encode_;  // set before StartRouter
  std::unique_ptr<RouterServer> router_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::RouterService::Stub> stub_;
};

}  // namespace kvmesh::router
