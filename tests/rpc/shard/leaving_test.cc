// Shards that leave and save their sessions as fragments, with and without an arbiter.
#include "tests/rpc/shard/checkpoint_fixture.h"

namespace kvmesh::shard {
namespace {

// Gives every fragment a place in one store.
class OneStoreArbiter final : public v1::MetaService::Service {
 public:
  explicit OneStoreArbiter(std::string store) : store_(std::move(store)) {}
  grpc::Status Reserve(grpc::ServerContext*, const v1::ReserveRequest* request,
                       v1::ReserveResponse* response) override {
    MutexLock lock(&mutex_);
    requests_.push_back(*request);
    response->set_write_id(std::string(Write(static_cast<uint8_t>(requests_.size())).bytes()));
    v1::ReservedRange& range = *response->add_ranges();
    *range.mutable_layers() = request->ranges(0).layers();
    range.set_address(store_);
    return grpc::Status::OK;
  }
  std::vector<v1::ReserveRequest> requests() {
    MutexLock lock(&mutex_);
    return requests_;
  }

 private:
  const std::string store_;
  Mutex mutex_;
  std::vector<v1::ReserveRequest> requests_ ABSL_GUARDED_BY(mutex_);
};

using LeavingTest = CheckpointTest;

TEST_F(LeavingTest, AShardThatLeavesSavesItsSessionsAndNamesTheirPosition) {
  OneStoreArbiter arbiter(store_);
  const Served served(arbiter);
  ShardServerOptions options = WithCheckpoints();
  options.checkpoints.fragments = true;
  options.meta_address = served.address;
  TestShard shard = StartShard(clock_, {}, options);
  ForwardClient client(*shard.stub);
  client.Send(MakeNamedOpen({Ref(shard, kAll)}, 1, kPrompt));
  client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, kAll));
  ASSERT_TRUE(client.ReadToken().has_value());
  shard.server->Drain();
  std::optional<ErrorInfo> info = ErrorInfoOf(client.End());
  ASSERT_TRUE(info.has_value());
  const Sha256Digest key = KeyOf(ToyNamespace(), kPrompt, testing::ToyVocabulary());
  EXPECT_EQ(info->reason, reason::kDraining);
  EXPECT_EQ(info->metadata["key"], key.ToHex());
  EXPECT_EQ(info->metadata["held"], "4");
  EXPECT_TRUE(shard.server->WaitUntilQuiet(kPatience));
  EXPECT_EQ(Metric(shard, "saves_total", {{"reason", "shutdown"}, {"result", "done"}}), 1);
  const std::vector<v1::ReserveRequest> requests = arbiter.requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].kind(), v1::RESERVATION_KIND_FRAGMENT);
  EXPECT_EQ(requests[0].key(), key.ToHex());
  EXPECT_EQ(requests[0].reason(), v1::SAVE_REASON_SHUTDOWN);
  EXPECT_EQ(requests[0].model_layers(), kLayers);
  EXPECT_EQ(requests[0].ranges(0).layers().end(), kLayers);
  // A successor starts from it.
  TestShard successor = StartShard(clock_, {}, WithCheckpoints());
  ForwardClient next(*successor.stub);
  forward::Open open = MakeNamedOpen({Ref(successor, kAll)}, 1, kPrompt);
  open.restore = {RestoreOfPrompt()};
  next.Send(open);
  next.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, kPrompt.size(), 0, kAll));
  EXPECT_EQ(next.ReadToken(), testing::ToyGenerate(kPrompt, 1)[0]);
}

TEST_F(LeavingTest, AShardThatLeavesWithoutAnArbiterDropsItsSavesInTime) {
  ShardServerOptions options = WithCheckpoints();
  options.checkpoints.fragments = true;
  options.meta_address = "127.0.0.1:1";
  TestShard shard = StartShard(clock_, {}, options);
  ForwardClient client(*shard.stub);
  client.Send(MakeNamedOpen({Ref(shard, kAll)}, 1, kPrompt));
  client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, kAll));
  ASSERT_TRUE(client.ReadToken().has_value());
  shard.server->Drain();
  EXPECT_EQ(ReasonOf(client.End()), reason::kDraining);
  EXPECT_TRUE(shard.server->WaitUntilQuiet(kPatience));
  EXPECT_EQ(Metric(shard, "saves_total", {{"reason", "shutdown"}, {"result", "no_arbiter"}}), 1);
}

}  // namespace
}  // namespace kvmesh::shard
