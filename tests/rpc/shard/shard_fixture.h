// A real ShardServer over the toy engine on a free port, and a client that speaks frames to it.
#pragma once

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/limits.h"
#include "common/base/sha256.h"
#include "common/rpc/channel.h"
#include "common/rpc/forward_codec.h"
#include "common/rpc/status_bridge.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "services/shard/grpc/shard_server.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/toy_engine.h"

namespace kvmesh::shard {

inline constexpr uint32_t kLayers = 6;
inline constexpr absl::Duration kPatience = absl::Seconds(20);  // the bound of every wait

// Looks again and again until `done` says so. False: it never did.
template <typename Done>
bool Eventually(Done done) {
  const MonotonicClock clock;
  const MonoTime end = clock.Now() + kPatience;
  while (!done()) {
    if (clock.Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

inline SessionId Session(uint8_t number) {
  SessionId id;
  id.mutable_data()[0] = number;
  return id;
}

// One Forward call, blocking; every wait is bounded by the call's deadline.
class ForwardClient {
 public:
  explicit ForwardClient(v1::ShardService::Stub& stub, absl::Duration deadline = kPatience) {
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline));
    stream_ = stub.Forward(&context_);
  }
  ~ForwardClient() {
    context_.TryCancel();
    if (!ended_) End().IgnoreError();
  }
  ForwardClient(const ForwardClient&) = delete;
  ForwardClient& operator=(const ForwardClient&) = delete;

  bool SendRaw(const v1::ForwardRequest& request) { return stream_->Write(request); }
  bool Send(forward::Frame frame) {
    return SendRaw(rpc::EncodeFrame(std::move(frame), testing::kToyHiddenSize));
  }
  // The next answer; nothing when the stream has ended.
  std::optional<forward::Answer> Read() {
    v1::ForwardResponse response;
    if (!stream_->Read(&response)) return std::nullopt;
    auto answer = rpc::DecodeAnswer(std::move(response));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? std::optional(*std::move(answer)) : std::nullopt;
  }
  // The id of the next Output, whatever comes before it.
  std::optional<uint32_t> ReadToken() {
    while (std::optional<forward::Answer> answer = Read()) {
      if (const auto* output = std::get_if<forward::Output>(&*answer)) return output->token_id;
    }
    return std::nullopt;
  }
  void Cancel() { context_.TryCancel(); }
  // Reads to the end and tells how it ended. The server ends the call: nothing is half-closed
  // before, since that would be the end of a stream without Close.
  absl::Status End() {
    ended_ = true;
    v1::ForwardResponse ignored;
    while (stream_->Read(&ignored)) {
    }
    return rpc::FromGrpc(stream_->Finish());
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ForwardRequest, v1::ForwardResponse>> stream_;
  bool ended_ = false;
};

struct TestShard {
  std::unique_ptr<ShardServer> server;
  std::string address;
  std::unique_ptr<v1::ShardService::Stub> stub;
};

inline model::ModelDigests ToyDigests(LayerRange layers) {
  model::ModelDigests digests{.range = layers};
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    digests.layers.push_back(Sha256Of(absl::StrCat("layer ", layer)));
  }
  return digests;
}

inline TestShard StartShard(const Clock& clock, testing::ToyOptions engine = {},
                            ShardServerOptions options = {}) {
  options.server.listen = "127.0.0.1:0";
  TestShard shard;
  auto server =
      ShardServer::Start(options, clock, std::make_unique<testing::ToyEngine>(engine),
                         std::make_unique<testing::ToyVocabulary>(), ToyDigests(engine.layers));
  EXPECT_TRUE(server.ok()) << server.status();
  shard.server = *std::move(server);
  shard.address = absl::StrCat("127.0.0.1:", shard.server->port());
  shard.stub = v1::ShardService::NewStub(rpc::MakeChannel(shard.address));
  return shard;
}

inline forward::HopRef Ref(const TestShard& shard, LayerRange layers) {
  return {.address = shard.address, .instance = shard.server->instance(), .layers = layers};
}

inline forward::Open MakeOpen(std::vector<forward::HopRef> hops, uint8_t session,
                              std::vector<uint32_t> history, uint64_t epoch = 1,
                              uint64_t attempt = 1) {
  forward::Open open{.session = Session(session),
                     .epoch = SessionEpoch{epoch},
                     .attempt = StreamAttempt{attempt},
                     .hops = std::move(hops),
                     .history = std::move(history),
                     .reserve_tokens = 64};
  open.prompt_tokens = static_cast<uint32_t>(open.history.size());
  return open;
}

// The frame that runs ids [past_len, all.size()) of `all` at a first hop with `layers`.
inline forward::Compute MakeFrame(forward::CacheMode mode, const std::vector<uint32_t>& all,
                                  uint64_t past_len, uint32_t step, LayerRange layers) {
  return {.cache_mode = mode,
          .past_len = past_len,
          .layers = layers,
          .step = step,
          .tokens = {all.begin() + static_cast<std::ptrdiff_t>(past_len), all.end()},
          .prefix_digest = PrefixDigest(TokensSha256(absl::MakeConstSpan(all).first(past_len))),
          .want_logits = true};
}

// Runs `prompt` and then decode steps on an open stream until `count` tokens have come.
inline std::vector<uint32_t> Generate(ForwardClient& client, const std::vector<uint32_t>& prompt,
                                      uint32_t count, LayerRange layers) {
  std::vector<uint32_t> all = prompt;
  for (uint32_t step = 0; step < count; ++step) {
    const bool first = step == 0;
    client.Send(MakeFrame(first ? forward::CacheMode::kPrefill : forward::CacheMode::kDecode, all,
                          first ? 0 : all.size() - 1, step, layers));
    const std::optional<uint32_t> token = client.ReadToken();
    if (!token.has_value()) break;
    all.push_back(*token);
  }
  return {all.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all.end()};
}

inline std::optional<v1::SessionInfo> GetSession(const TestShard& shard, uint8_t session) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kPatience));
  v1::GetSessionRequest request;
  request.set_session_id(Session(session).ToHex());
  v1::GetSessionResponse response;
  const grpc::Status status = shard.stub->GetSession(&context, request, &response);
  if (!status.ok()) return std::nullopt;
  return response.session();
}

inline constexpr LayerRange kAll{0, kLayers};
inline const std::vector<uint32_t> kPrompt = {5, 6, 7, 8};

inline double Metric(const TestShard& shard, const std::string& name,
                     const metrics::Labels& labels = {}) {
  return shard.server->metrics().Value("kvmesh_shard_" + name, labels);
}

inline void SetDeadline(grpc::ClientContext& context) {
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

}  // namespace kvmesh::shard
