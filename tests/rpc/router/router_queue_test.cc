// RouterService when more is asked of it than it can do at once.
#include "common/base/error_info.h"
#include "tests/rpc/router/router_fixture.h"

namespace kvmesh::router {
namespace {

// All threads for long work are held by two texts while a third caller goes away.
class RouterLongWork : public RouterFixture {
 protected:
  void SetUp() override {
    on_encode_ = [this](absl::string_view text) {
      MutexLock lock(&mutex_);
      if (text == "z") ++late_encoded_;
      if (hold_long_ ? text.size() < (1 << 20) : text != "a") return;
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

  bool hold_long_ = false;  // hold texts of a megabyte in place of "a"; before StartRouter

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

// More than the threads for long work, of a size that counts as long.
TEST_F(RouterLongWork, ShortTextsAreTokenisedWhileLongOnesAre) {
  hold_long_ = true;
  StartRouter({"127.0.0.1:1"});
  SetHeld(true);
  const std::string long_text(1 << 20, 'a');
  std::vector<std::thread> holders;
  for (int i = 0; i < 3; ++i) holders.emplace_back([this, &long_text] { Tokenize(long_text); });
  EXPECT_TRUE(Eventually([this] { return holding() == 1; }));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Tokenize("b"), grpc::StatusCode::OK);
  EXPECT_EQ(holding(), 1);
  SetHeld(false);
  for (std::thread& holder : holders) holder.join();
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
