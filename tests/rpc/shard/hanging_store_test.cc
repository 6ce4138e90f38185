// Stores that take calls and do not answer.
#include <atomic>

#include "tests/rpc/shard/checkpoint_fixture.h"

namespace kvmesh::shard {
namespace {

// Takes every Put whole, or the request of every Get, and then does not answer until it is let go.
class HangingStore final : public v1::BlobService::Service {
 public:
  grpc::Status Put(grpc::ServerContext* context, grpc::ServerReader<v1::PutRequest>* reader,
                   v1::PutResponse*) override {
    v1::PutRequest request;
    while (reader->Read(&request)) {
    }
    return Hold(context);
  }
  grpc::Status Get(grpc::ServerContext* context, const v1::GetRequest*,
                   grpc::ServerWriter<v1::GetResponse>*) override {
    return Hold(context);
  }
  bool held() const { return calls_ > 0; }
  int calls() const { return calls_; }
  void Release() { released_ = true; }

 private:
  grpc::Status Hold(grpc::ServerContext* context) {
    ++calls_;
    EXPECT_TRUE(Eventually([&] { return released_ || context->IsCancelled(); }));
    return grpc::Status::OK;
  }

  std::atomic<int> calls_{0};
  std::atomic<bool> released_{false};
};

using HangingStoreTest = CheckpointTest;

TEST_F(HangingStoreTest, DecodeGoesOnWhileTheStoreHoldsTheUpload) {
  HangingStore hanging;
  const Served served(hanging);
  TestShard shard = StartShard(clock_, {}, WithCheckpoints());
  ForwardClient client(*shard.stub);
  client.Send(MakeNamedOpen({Ref(shard, kAll)}, 1, kPrompt));
  client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, kAll));
  std::vector<uint32_t> all = kPrompt;
  all.push_back(*client.ReadToken());
  client.Send(MakeSave(kPrompt.size(), served.address));
  ASSERT_TRUE(Eventually([&] { return hanging.held(); }));
  for (uint32_t step = 1; step <= 20; ++step) {
    client.Send(MakeFrame(forward::CacheMode::kDecode, all, all.size() - 1, step, kAll));
    const std::optional<uint32_t> token = client.ReadToken();
    ASSERT_TRUE(token.has_value());
    all.push_back(*token);
  }
  const std::vector<uint32_t> expected = testing::ToyGenerate(kPrompt, 21);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), all.begin() + kPrompt.size()));
  EXPECT_EQ(Metric(shard, "saves_in_flight"), 1);
  hanging.Release();
  EXPECT_EQ(ReadSaveEnd(client), "done");
}

TEST_F(HangingStoreTest, AStoreThatHangsCostsTheSaveItsDeadlineAndNothingElse) {
  HangingStore hanging;
  const Served served(hanging);
  ShardServerOptions options = WithCheckpoints();
  options.checkpoints.save_timeout = absl::Milliseconds(200);
  TestShard shard = StartShard(clock_, {}, options);
  ForwardClient client(*shard.stub);
  client.Send(MakeNamedOpen({Ref(shard, kAll)}, 1, kPrompt));
  client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, kAll));
  client.Send(MakeSave(kPrompt.size(), served.address));
  EXPECT_EQ(ReadSaveEnd(client), "dropped deadline");
  EXPECT_EQ(Metric(shard, "save_in_flight_bytes"), 0);
}

TEST_F(HangingStoreTest, AStoreThatHangsHoldsUpNoReadOfAnother) {
  SavePrompt();
  HangingStore hanging;
  const Served served(hanging);
  ShardServerOptions options = WithCheckpoints();
  options.checkpoints.restore_timeout = absl::Hours(1);
  TestShard shard = StartShard(clock_, {}, options);
  forward::HopRestore restore = RestoreOfPrompt();
  restore.slabs[0].store_address = served.address;
  for (uint8_t session = 1; session <= 8; ++session) {
    ForwardClient client(*shard.stub);
    forward::Open open = MakeNamedOpen({Ref(shard, kAll)}, session, kPrompt);
    open.restore = {restore};
    client.Send(open);
    ASSERT_TRUE(Eventually([&] { return hanging.calls() == session; }));
  }
  ForwardClient client(*shard.stub);
  forward::Open open = MakeNamedOpen({Ref(shard, kAll)}, 9, kPrompt);
  open.restore = {RestoreOfPrompt()};
  client.Send(open);
  client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, kPrompt.size(), 0, kAll));
  EXPECT_EQ(client.ReadToken(), testing::ToyGenerate(kPrompt, 1)[0]);
}

TEST_F(HangingStoreTest, AShardThatStopsWaitsForNoStore) {
  HangingStore hanging;
  const Served served(hanging);
  ShardServerOptions options = WithCheckpoints();
  options.checkpoints.save_timeout = absl::Hours(1);
  options.checkpoints.restore_timeout = absl::Hours(1);
  {
    TestShard shard = StartShard(clock_, {}, options);
    ForwardClient client(*shard.stub);
    client.Send(MakeNamedOpen({Ref(shard, kAll)}, 1, kPrompt));
    client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, kAll));
    client.Send(MakeSave(kPrompt.size(), served.address));
    ASSERT_TRUE(Eventually([&] { return hanging.held(); }));
    shard.server->Shutdown(absl::ZeroDuration());
    EXPECT_EQ(Metric(shard, "saves_total", {{"reason", "cold"}, {"result", "shutting_down"}}), 1);
  }
  HangingStore second;
  const Served served_second(second);
  TestShard shard = StartShard(clock_, {}, options);
  ForwardClient client(*shard.stub);
  forward::Open open = MakeNamedOpen({Ref(shard, kAll)}, 1, kPrompt);
  open.restore = {RestoreOfPrompt()};
  open.restore[0].slabs[0].store_address = served_second.address;
  client.Send(open);
  ASSERT_TRUE(Eventually([&] { return second.held(); }));
  shard.server->Shutdown(absl::ZeroDuration());
}

}  // namespace
}  // namespace kvmesh::shard
