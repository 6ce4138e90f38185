// A real shard that stores slabs in a real store and starts from them.
#pragma once

#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include "services/blob/grpc/blob_server.h"
#include "services/shard/core/save_slab.h"
#include "tests/rpc/shard/shard_fixture.h"
#include "tests/testing/store_fixture.h"
#include "tests/testing/toy_checkpoint.h"

namespace kvmesh::shard {

// Serves a fake on a free port.
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
      const auto* state = std::get_if<forward::SaveState>(&*answer);
      if (state == nullptr || state->state == forward::SaveState::State::kStarted) continue;
      return state->state == forward::SaveState::State::kDone ? "done" : "dropped " + state->cause;
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
    client.Send(forward::Close{forward::Disposition::kDrop});
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

}  // namespace kvmesh::shard
