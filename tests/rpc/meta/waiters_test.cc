// Callers that wait for the arbiter's thread: for a write, for an end, in a full queue.
#include <future>
#include <thread>

#include "tests/rpc/meta/meta_fixture.h"

namespace kvmesh::meta {
namespace {

using Stub = v1::MetaService::Stub;

TEST_F(MetaRpcTest, AWriteGoesFromReserveToARowAndWakesWhoWaits) {
  Start();
  FakeStore store({.address = "10.0.0.1:7001"});
  ASSERT_TRUE(store.Attach(channel_).ok());
  const std::string text = RowText(1, 5000);
  const v1::ReserveRequest reserve = ReserveOf(text);
  v1::ReserveResponse reserved;
  ASSERT_TRUE(WaitUntil([&] { return Do(&Stub::Reserve, reserve, &reserved).ok(); }));
  ASSERT_EQ(reserved.ranges_size(), 2);
  EXPECT_EQ(reserved.ranges(0).address(), "10.0.0.1:7001");
  v1::ReserveResponse again;
  ASSERT_TRUE(Do(&Stub::Reserve, reserve, &again).ok());  // the same request
  EXPECT_EQ(again.write_id(), reserved.write_id());
  EXPECT_EQ(ReasonOf(Do(&Stub::Reserve, ReserveOf(text), &again)), "BEING_WRITTEN");

  v1::AwaitKeyRequest await;
  *await.mutable_namespace_() = Namespace();
  await.set_key(reserve.key());
  await.mutable_wait()->set_value(60'000);
  v1::AwaitKeyResponse row;
  std::future<absl::Status> waiting =
      std::async(std::launch::async, [&] { return Do(&Stub::AwaitKey, await, &row); });
  const auto halves = Halves(text, WriteId::FromBytes(reserved.write_id(), "id").value(), {2048});
  store.Put(halves[0]);
  EXPECT_EQ(HitBytes(text), 0U);
  store.Put(halves[1]);
  ASSERT_TRUE(waiting.get().ok());
  EXPECT_EQ(row.row().slabs_size(), 2);
  EXPECT_EQ(HitBytes(text), 5000U);
  EXPECT_TRUE(absl::IsAlreadyExists(Do(&Stub::Reserve, ReserveOf(text), &again)));
}

class MetaWaitersTest : public MetaRpcTest {
 protected:
  // Reserves a row that nobody writes; the call that waits a minute for it.
  v1::AwaitKeyRequest ReserveAndAwait() {
    const v1::ReserveRequest reserve = ReserveOf("text");
    v1::ReserveResponse reserved;
    EXPECT_TRUE(WaitUntil([&] { return Do(&Stub::Reserve, reserve, &reserved).ok(); }));
    v1::AwaitKeyRequest await;
    *await.mutable_namespace_() = Namespace();
    await.set_key(reserve.key());
    await.mutable_wait()->set_value(60'000);
    return await;
  }
  bool WaitForWaiters(uint64_t count) {
    return WaitUntil([&] {
      v1::MetaServiceGetStatsResponse stats;
      return Do(&Stub::GetStats, v1::MetaServiceGetStatsRequest(), &stats).ok() &&
             stats.waiters() == count;
    });
  }
};

TEST_F(MetaWaitersTest, WhoWaitsIsAnsweredWhenTheServerDrains) {
  Start();
  FakeStore store({});
  ASSERT_TRUE(store.Attach(channel_).ok());
  const v1::AwaitKeyRequest await = ReserveAndAwait();
  std::future<absl::Status> waiting = std::async(std::launch::async, [&] {
    v1::AwaitKeyResponse row;
    return Do(&Stub::AwaitKey, await, &row);
  });
  ASSERT_TRUE(WaitForWaiters(1));
  meta_->Shutdown(absl::Seconds(30));
  EXPECT_TRUE(absl::IsUnavailable(waiting.get()));
  EXPECT_TRUE(WaitUntil([&] { return store.ended().has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*store.ended())) << *store.ended();
}

TEST_F(MetaWaitersTest, ACallerThatGoesIsWaitedForNoMore) {
  Start();
  FakeStore store({});
  ASSERT_TRUE(store.Attach(channel_).ok());
  const v1::AwaitKeyRequest await = ReserveAndAwait();
  grpc::ClientContext context;
  std::future<grpc::Status> waiting = std::async(std::launch::async, [&] {
    v1::AwaitKeyResponse row;
    return stub_->AwaitKey(&context, await, &row);
  });
  ASSERT_TRUE(WaitForWaiters(1));
  context.TryCancel();
  EXPECT_EQ(waiting.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(WaitForWaiters(0));
}

// Loops of their own: their queues can be filled.
TEST(ArbiterLoop, AFullQueueRefusesWithARetryDelayAndTakesFramesOfStoresStill) {
  metrics::Metrics metrics("meta");
  MetaMetrics meta_metrics(metrics);
  ReadIndex index;
  const MonotonicClock clock;
  std::promise<void> running;
  std::promise<void> go;
  std::vector<absl::Status> answers;
  {
    ArbiterLoop loop({.queue_max = 2}, clock, meta_metrics, index);
    ASSERT_TRUE(loop.Ask([&](const ArbiterLoop::View&) {
                      running.set_value();
                      go.get_future().wait_for(std::chrono::seconds(60));
                    })
                    .ok());
    running.get_future().wait_for(std::chrono::seconds(60));
    const auto ask = [&] {
      loop.Ask(Checkout{}, [&](const Answer& answer, const Incarnation&) {
        answers.push_back(std::get<absl::Status>(answer));
      });
    };
    for (int i = 0; i < 3; ++i) ask();
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_EQ(ReasonOf(answers[0]), reason::kQueueFull);
    EXPECT_TRUE(RetryDelayOf(answers[0]).has_value());
    EXPECT_TRUE(absl::IsResourceExhausted(loop.Ask([](const ArbiterLoop::View&) {})));
    loop.StreamEnded(StreamId{7});
    go.set_value();
  }
  // The others were answered by the arbiter, or by the end of the loop.
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_FALSE(answers[2].ok());
}

}  // namespace
}  // namespace kvmesh::meta
