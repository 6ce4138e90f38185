// What a shard saves, another starts from; stores that are not there, or not the shard's.
#include "tests/rpc/shard/checkpoint_fixture.h"

namespace kvmesh::shard {
namespace {

using forward::Disposition;

TEST_F(CheckpointTest, APromptThatOneShardSavedIsAFullHitAtAnother) {
  SavePrompt();
  TestShard shard = StartShard(clock_, {}, WithCheckpoints());
  ForwardClient client(*shard.stub);
  forward::Open open = MakeNamedOpen({Ref(shard, kAll)}, 2, kPrompt);
  open.restore = {RestoreOfPrompt()};
  client.Send(open);
  client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, kPrompt.size(), 0, kAll));
  const std::optional<forward::Answer> first = client.Read();
  ASSERT_TRUE(first.has_value());
  const auto* opened = std::get_if<forward::Opened>(&*first);
  ASSERT_NE(opened, nullptr);
  EXPECT_TRUE(opened->restored);
  EXPECT_EQ(opened->held, kPrompt.size());
  const std::vector<uint32_t> expected = testing::ToyGenerate(kPrompt, 5);
  std::vector<uint32_t> all = kPrompt;
  for (uint32_t step = 0; step < expected.size(); ++step) {
    if (step > 0) {
      client.Send(MakeFrame(forward::CacheMode::kDecode, all, all.size() - 1, step, kAll));
    }
    const std::optional<uint32_t> token = client.ReadToken();
    ASSERT_TRUE(token.has_value());
    EXPECT_EQ(*token, expected[step]);
    all.push_back(*token);
  }
  EXPECT_EQ(Metric(shard, "restores_total", {{"result", "done"}}), 1);
  EXPECT_EQ(Metric(shard, "full_hits_total"), 1);
}

TEST_F(CheckpointTest, TwoShardsStartFromWhatOneSaved) {
  SavePrompt();
  TestShard back = StartShard(clock_, {.layers = {2, 6}}, WithCheckpoints());
  TestShard front = StartShard(clock_, {.layers = {0, 2}}, WithCheckpoints());
  ForwardClient client(*front.stub);
  forward::Open open = MakeNamedOpen({Ref(front, {0, 2}), Ref(back, {2, 6})}, 2, kPrompt);
  open.restore = {RestoreOfPrompt(0), RestoreOfPrompt(1)};
  client.Send(open);
  client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, kPrompt.size(), 0, {0, 2}));
  const std::optional<uint32_t> token = client.ReadToken();
  ASSERT_TRUE(token.has_value()) << client.End();
  EXPECT_EQ(*token, testing::ToyGenerate(kPrompt, 1)[0]);
}

TEST_F(CheckpointTest, TwoShardsSaveEachTheirOwnLayersAndTheStreamEndsAfterBoth) {
  TestShard back = StartShard(clock_, {.layers = {2, 6}}, WithCheckpoints());
  TestShard front = StartShard(clock_, {.layers = {0, 2}}, WithCheckpoints());
  ForwardClient client(*front.stub);
  client.Send(MakeNamedOpen({Ref(front, {0, 2}), Ref(back, {2, 6})}, 1, kPrompt));
  client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, {0, 2}));
  ASSERT_TRUE(client.ReadToken().has_value());
  client.Send(MakeSave(kPrompt.size(), store_, 2));
  client.Send(forward::Close{Disposition::kDrop});
  EXPECT_EQ(ReadSaveEnd(client), "done");
  EXPECT_EQ(ReadSaveEnd(client), "done");
  EXPECT_TRUE(client.End().ok());
  EXPECT_EQ(blob_->store().List(std::nullopt, 10).slabs.size(), 2u);
}

TEST_F(CheckpointTest, AStoreThatIsNotThereDropsTheSave) {
  TestShard shard = StartShard(clock_, {}, WithCheckpoints());
  ForwardClient client(*shard.stub);
  client.Send(MakeNamedOpen({Ref(shard, kAll)}, 1, kPrompt));
  client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, kAll));
  client.Send(MakeSave(kPrompt.size(), "127.0.0.1:1"));
  EXPECT_EQ(ReadSaveEnd(client), "dropped store_unavailable");
}

TEST_F(CheckpointTest, WhatCannotBeReadIsAMissWithItsCause) {
  SavePrompt();
  forward::HopRestore restore = RestoreOfPrompt();
  restore.slabs[0].write_id = Write(9);
  EXPECT_EQ(MissOf(restore, WithCheckpoints()), "restore_failed:not_found");
  restore = RestoreOfPrompt();
  restore.slabs[0].store_address = "127.0.0.1:1";
  EXPECT_EQ(MissOf(restore, WithCheckpoints()), "restore_failed:unavailable");
  restore = RestoreOfPrompt();
  restore.slabs[0].tokens_sha256 = Sha256Of("other");
  EXPECT_EQ(MissOf(restore, WithCheckpoints()), "restore_failed:wrong_slab");
}

TEST_F(CheckpointTest, AStoreThatIsNotAmongTheShardsIsNeverDialled) {
  SavePrompt();
  ShardServerOptions options = WithCheckpoints();
  options.stores = {"127.0.0.1:1", "stores.example"};
  EXPECT_EQ(MissOf(RestoreOfPrompt(), options), "restore_failed:refused");
  options.stores = {store_};
  EXPECT_NE(MissOf(RestoreOfPrompt(), options), "restore_failed:refused");
  TestShard shard = StartShard(clock_, {}, options);
  ForwardClient client(*shard.stub);
  client.Send(MakeNamedOpen({Ref(shard, kAll)}, 1, kPrompt));
  client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, kAll));
  client.Send(MakeSave(kPrompt.size(), "127.0.0.1:1"));
  EXPECT_EQ(ReadSaveEnd(client), "dropped store_refused");
}

TEST_F(CheckpointTest, AStoresAddressThatIsNoneIsNeverDialled) {
  SavePrompt();
  for (const char* address : {"127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", ":1", "dns:///a:1",
                              "ipv4:127.0.0.1:1,127.0.0.1:2", "http://127.0.0.1:1"}) {
    forward::HopRestore restore = RestoreOfPrompt();
    restore.slabs[0].store_address = address;
    EXPECT_EQ(MissOf(restore, WithCheckpoints()), "restore_failed:refused") << address;
  }
}

// More streams than there are threads begin from a store that hangs, and are given up.
// Both far from their deadlines.
}  // namespace
}  // namespace kvmesh::shard
