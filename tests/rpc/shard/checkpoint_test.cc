// A real shard that stores slabs in a real store and starts from them; stores and arbiters that
// hang or refuse.
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include "services/blob/grpc/blob_server.h"
#include "services/shard/core/save_slab.h"
#include "tests/rpc/shard/shard_fixture.h"
#include "tests/testing/store_fixture.h"

namespace kvmesh::shard {
namespace {

using forward::Disposition;
using forward::SaveState;

WriteId Write(uint8_t number) {
  WriteId id;
  id.mutable_data()[0] = number;
  return id;
}

forward::CacheNamespace ToyNamespace() {
  return {.model_fp = Sha256Of("toy model"),
          .quant = testing::kToyQuant,
          .ctx_params_hash = Sha256Of("toy params")};
}

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

// Serves one of them on a free port.
struct Served {
  explicit Served(grpc::Service& service) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    address = absl::StrCat("127.0.0.1:", port);
  }
  ~Served() { server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1)); }
  std::unique_ptr<grpc::Server> server;
  std::string address;
};

class CheckpointTest : public ShardServerTest {
 protected:
  CheckpointTest() {
    blob::BlobServerOptions options;
    options.server.listen = "127.0.0.1:0";
    options.folder = folder_.path();
    options.service.tier = "ram";
    options.store.budget_bytes = 64 << 20;
    auto blob = blob::BlobServer::Start(options, *files_, real_clock_);
    EXPECT_TRUE(blob.ok()) << blob.status();
    blob_ = *std::move(blob);
    store_ = absl::StrCat("127.0.0.1:", blob_->port());
  }
  static ShardServerOptions WithCheckpoints() {
    ShardServerOptions options;
    options.peers = {"*"};
    options.checkpoints.enabled = true;
    options.checkpoints.min_tokens = 2;
    options.align_tokens = 2;
    return options;
  }
  static forward::Open MakeNamedOpen(std::vector<forward::HopRef> hops, uint8_t session,
                                     std::vector<uint32_t> history) {
    forward::Open open = MakeOpen(std::move(hops), session, std::move(history));
    open.cache_namespace = ToyNamespace();
    return open;
  }
  static forward::Save MakeSave(uint64_t at_tokens, const std::string& store, uint32_t hops = 1) {
    forward::Save save{.at_tokens = at_tokens, .write_id = Write(1)};
    for (uint32_t hop = 0; hop < hops; ++hop) save.targets.emplace_back(hop, store);
    return save;
  }
  // What the save ends with; "started" may come before.
  static std::string ReadSaveEnd(ForwardClient& client) {
    while (std::optional<forward::Answer> answer = client.Read()) {
      const auto* state = std::get_if<SaveState>(&*answer);
      if (state == nullptr || state->state == SaveState::State::kStarted) continue;
      return state->state == SaveState::State::kDone ? "done" : "dropped " + state->cause;
    }
    return "(stream ended)";
  }
  // Runs the prompt on one shard and saves it.
  void SavePrompt() {
    TestShard shard = StartShard(clock_, {}, WithCheckpoints());
    ForwardClient client(*shard.stub);
    client.Send(MakeNamedOpen({Ref(shard, kAll)}, 1, kPrompt));
    client.Send(MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, kAll));
    client.Send(MakeSave(kPrompt.size(), store_));
    EXPECT_EQ(ReadSaveEnd(client), "done");
    client.Send(forward::Close{Disposition::kDrop});
    EXPECT_TRUE(client.End().ok());
    EXPECT_EQ(Metric(shard, "saves_total", {{"reason", "cold"}, {"result", "done"}}), 1);
  }
  forward::HopRestore RestoreOfPrompt(uint32_t hop = 0) const {
    return {.hop_index = hop,
            .slabs = {{.store_address = store_,
                       .key = KeyOf(ToyNamespace(), kPrompt, testing::ToyVocabulary()),
                       .layers = kAll,
                       .write_id = Write(1),
                       .tokens_sha256 = TokensSha256(kPrompt)}},
            .tokens = kPrompt.size()};
  }
  // The miss cause that opening with this restore ends with.
  std::string MissOf(const forward::HopRestore& restore, ShardServerOptions options) {
    TestShard shard = StartShard(clock_, {}, std::move(options));
    ForwardClient client(*shard.stub);
    forward::Open open = MakeNamedOpen({Ref(shard, kAll)}, 1, kPrompt);
    open.restore = {restore};
    client.Send(open);
    std::optional<ErrorInfo> info = ErrorInfoOf(client.End());
    return info.has_value() ? info->metadata["cause"] : "(no cause)";
  }

  const std::unique_ptr<blob::FileSystem> files_ = blob::MakePosixFileSystem();
  const MonotonicClock real_clock_;
  testing::TempFolder folder_{"ram"};
  std::unique_ptr<blob::BlobServer> blob_;
  std::string store_;
};

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

TEST_F(CheckpointTest, DecodeGoesOnWhileTheStoreHoldsTheUpload) {
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

TEST_F(CheckpointTest, AStoreThatHangsCostsTheSaveItsDeadlineAndNothingElse) {
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
TEST_F(CheckpointTest, AStoreThatHangsHoldsUpNoReadOfAnother) {
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

// Both far from their deadlines.
TEST_F(CheckpointTest, AShardThatStopsWaitsForNoStore) {
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

TEST_F(CheckpointTest, AShardThatLeavesSavesItsSessionsAndNamesTheirPosition) {
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

TEST_F(CheckpointTest, AShardThatLeavesWithoutAnArbiterDropsItsSavesInTime) {
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
