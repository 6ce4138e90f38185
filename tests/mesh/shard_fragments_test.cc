// Real shards, stores and arbiter, without a router: what shards save on their own account is found
// again and goes on to the same tokens.
#include <gtest/gtest.h>

#include "services/blob/grpc/blob_server.h"
#include "services/meta/grpc/meta_server.h"
#include "services/shard/core/save_slab.h"
#include "tests/rpc/shard/shard_fixture.h"
#include "tests/testing/store_fixture.h"
#include "tests/testing/toy_checkpoint.h"

namespace kvmesh::shard {
namespace {

using forward::Disposition;

void SetNamespace(v1::CacheNamespace* proto) {
  const forward::CacheNamespace name = ToyNamespace();
  proto->set_model_fp(name.model_fp.bytes().data(), Sha256Digest::kSize);
  proto->set_quant(name.quant);
  proto->set_ctx_params_hash(name.ctx_params_hash.bytes().data(), Sha256Digest::kSize);
}

class ShardFragmentsTest : public ::testing::Test {
 protected:
  ShardFragmentsTest() {
    meta::MetaServerOptions options;
    options.server.listen = "127.0.0.1:0";
    options.loop.arbiter.incarnation_id = RandomId<InstanceId>();
    auto meta = meta::MetaServer::Start(options, clock_);
    EXPECT_TRUE(meta.ok()) << meta.status();
    meta_ = *std::move(meta);
    meta_address_ = absl::StrCat("127.0.0.1:", meta_->port());
    stub_ = v1::MetaService::NewStub(rpc::MakeChannel(meta_address_));
    disk_ = StartStore("disk", disk_folder_.path());
    shm_ = StartStore("ram_file", shm_folder_.path());
    EXPECT_TRUE(Eventually([&] { return StoresServing() == 2; }));
  }
  std::unique_ptr<blob::BlobServer> StartStore(const std::string& tier, const std::string& folder) {
    blob::BlobServerOptions options;
    options.server.listen = "127.0.0.1:0";
    options.folder = folder;
    options.service.tier = tier;
    options.store.budget_bytes = 16 << 20;
    options.meta.arbiter = meta_address_;
    auto blob = blob::BlobServer::Start(options, *files_, clock_);
    EXPECT_TRUE(blob.ok()) << blob.status();
    return *std::move(blob);
  }
  int StoresServing() {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::MetaServiceGetStatsResponse stats;
    if (!stub_->GetStats(&context, {}, &stats).ok()) return -1;
    return static_cast<int>(
        std::count_if(stats.stores().begin(), stats.stores().end(),
                      [](const v1::StoreStatus& store) { return store.state() == "SERVING"; }));
  }
  ShardServerOptions Options() const {
    ShardServerOptions options;
    options.peers = {"*"};
    options.checkpoints.enabled = true;
    options.checkpoints.fragments = true;
    options.checkpoints.min_tokens = 2;
    options.checkpoints.evict_save_timeout = kPatience;
    options.meta_address = meta_address_;
    options.align_tokens = 2;
    return options;
  }
  // The fragment of this range at the prompt's end; nothing: there is none in time.
  std::optional<v1::AwaitFragmentResponse> AwaitFragment(LayerRange layers) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::AwaitFragmentRequest request;
    SetNamespace(request.mutable_namespace_());
    request.mutable_layers()->set_begin(layers.begin);
    request.mutable_layers()->set_end(layers.end);
    v1::FragmentPosition& position = *request.add_positions();
    position.set_key(KeyOf(ToyNamespace(), kPrompt, testing::ToyVocabulary()).ToHex());
    position.set_tokens_sha256(TokensSha256(kPrompt).bytes().data(), Sha256Digest::kSize);
    position.set_token_count(static_cast<uint32_t>(kPrompt.size()));
    request.mutable_appear_wait()->set_value(5000);
    request.mutable_upload_wait()->set_value(10000);
    request.set_lease_id(std::string(RandomId<WriteId>().bytes()));
    v1::AwaitFragmentResponse response;
    const grpc::Status status = stub_->AwaitFragment(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return status.ok() ? std::optional(response) : std::nullopt;
  }
  v1::LookupResponse Lookup() {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::LookupRequest request;
    SetNamespace(request.mutable_namespace_());
    request.set_text(testing::ToyText(kPrompt));
    v1::LookupResponse response;
    EXPECT_TRUE(stub_->Lookup(&context, request, &response).ok());
    return response;
  }
  static forward::SlabRef RefOf(const v1::SlabPlace& place) {
    return {.store_address = place.address(),
            .key = *Sha256Digest::FromHex(place.slab().key(), "key"),
            .layers = {place.slab().layers().begin(), place.slab().layers().end()},
            .write_id = *WriteId::FromHex(place.slab().write_id(), "write_id"),
            .tokens_sha256 = TokensSha256(kPrompt)};
  }

  const MonotonicClock clock_;
  const std::unique_ptr<blob::FileSystem> files_ = blob::MakePosixFileSystem();
  testing::TempFolder disk_folder_{"disk"};
  testing::TempFolder shm_folder_{"ram_file"};
  std::unique_ptr<meta::MetaServer> meta_;
  std::string meta_address_;
  std::unique_ptr<v1::MetaService::Stub> stub_;
  std::unique_ptr<blob::BlobServer> disk_;
  std::unique_ptr<blob::BlobServer> shm_;
};

TEST_F(ShardFragmentsTest, WhatAllShardsSaveWhenTheyLeaveBecomesARowThatAnotherSplitStartsFrom) {
  {
    TestShard back = StartShard(clock_, {.layers = {2, 6}}, Options());
    TestShard front = StartShard(clock_, {.layers = {0, 2}}, Options());
    ForwardClient client(*front.stub);
    forward::Open open = MakeOpen({Ref(front, {0, 2}), Ref(back, {2, 6})}, 1, kPrompt);
    open.cache_namespace = ToyNamespace();
    client.Send(open);
    client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, {0, 2}));
    ASSERT_TRUE(client.ReadToken().has_value());
    back.server->Drain();
    front.server->Drain();
    EXPECT_EQ(ReasonOf(client.End()), reason::kDraining);
    EXPECT_TRUE(front.server->WaitUntilQuiet(kPatience));
    EXPECT_TRUE(back.server->WaitUntilQuiet(kPatience));
  }
  const auto fragment = AwaitFragment({2, 6});
  ASSERT_TRUE(fragment.has_value());
  EXPECT_EQ(fragment->slab().tier(), "disk");
  ASSERT_TRUE(Eventually([&] { return Lookup().found(); }));
  const v1::LookupResponse row = Lookup();
  EXPECT_EQ(row.token_count(), kPrompt.size());
  ASSERT_EQ(row.row().slabs_size(), 2);

  TestShard back = StartShard(clock_, {.layers = {3, 6}}, Options());
  TestShard front = StartShard(clock_, {.layers = {0, 3}}, Options());
  ForwardClient client(*front.stub);
  forward::Open open = MakeOpen({Ref(front, {0, 3}), Ref(back, {3, 6})}, 2, kPrompt);
  open.cache_namespace = ToyNamespace();
  for (const uint32_t hop : {0, 1}) {
    open.restore.push_back({.hop_index = hop, .tokens = kPrompt.size()});
    for (const v1::SlabPlace& place : row.row().slabs()) {
      open.restore.back().slabs.push_back(RefOf(place));
    }
  }
  client.Send(open);
  client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, kPrompt.size(), 0, {0, 3}));
  const std::optional<uint32_t> token = client.ReadToken();
  ASSERT_TRUE(token.has_value()) << client.End();
  EXPECT_EQ(*token, testing::ToyGenerate(kPrompt, 1)[0]);
}

TEST_F(ShardFragmentsTest, ASessionThatIsPushedOutIsAFragmentThatItsShardStartsFromAgain) {
  ShardServerOptions options = Options();
  options.sessions_max = 1;
  TestShard shard = StartShard(clock_, {}, options);
  {
    ForwardClient client(*shard.stub);
    forward::Open open = MakeOpen({Ref(shard, kAll)}, 1, kPrompt);
    open.cache_namespace = ToyNamespace();
    client.Send(open);
    client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, kAll));
    ASSERT_TRUE(client.ReadToken().has_value());
    client.Send(forward::Close{Disposition::kKeep});
    EXPECT_TRUE(client.End().ok());
  }
  {
    ForwardClient newcomer(*shard.stub);
    forward::Open open = MakeOpen({Ref(shard, kAll)}, 2, {1, 2, 3});
    open.cache_namespace = ToyNamespace();
    newcomer.Send(open);
    newcomer.Send(MakeFrame(forward::CacheMode::kPrefill, {1, 2, 3}, 0, 0, kAll));
    EXPECT_EQ(newcomer.ReadToken(), testing::ToyGenerate({1, 2, 3}, 1)[0]);
    newcomer.Send(forward::Close{Disposition::kDrop});
    EXPECT_TRUE(newcomer.End().ok());
  }
  const auto fragment = AwaitFragment(kAll);
  ASSERT_TRUE(fragment.has_value());
  EXPECT_EQ(fragment->slab().tier(), "ram_file");
  ForwardClient again(*shard.stub);
  forward::Open open = MakeOpen({Ref(shard, kAll)}, 1, kPrompt, 1, 2);
  open.cache_namespace = ToyNamespace();
  open.restore = {{.slabs = {RefOf(fragment->slab())}, .tokens = kPrompt.size()}};
  again.Send(open);
  std::vector<uint32_t> all = kPrompt;
  all.push_back(testing::ToyGenerate(kPrompt, 1)[0]);
  again.Send(MakeFrame(forward::CacheMode::kDecode, all, kPrompt.size(), 1, kAll));
  const std::optional<uint32_t> token = again.ReadToken();
  ASSERT_TRUE(token.has_value()) << again.End();
  EXPECT_EQ(*token, testing::ToyGenerate(kPrompt, 2)[1]);
}

}  // namespace
}  // namespace kvmesh::shard
