// A store that attaches to a fake arbiter, on any tier.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/blob_client.h"
#include "common/rpc/channel.h"
#include "services/blob/grpc/blob_server.h"
#include "tests/rpc/blob/blob_calls.h"
#include "tests/testing/fake_arbiter.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/store_fixture.h"

namespace kvmesh::blob {

class AttachTest : public ::testing::TestWithParam<std::string> {
 protected:
  using Command = v1::AttachStoreResponse;
  using Frame = v1::AttachStoreRequest;

  AttachTest() : folder_(GetParam()), arbiter_(std::make_unique<testing::FakeArbiter>()) {
    options_.server.listen = "127.0.0.1:0";
    options_.folder = folder_.path();
    options_.service.tier = GetParam();
    options_.store.budget_bytes = 256 << 20;
    options_.meta.arbiter = arbiter_->address();
    options_.meta.facts.node = "node-a";
    options_.meta.delay_first = absl::Milliseconds(10);
    options_.meta.delay_longest = absl::Milliseconds(100);
  }

  void Start() { Start(clock_); }
  void Start(const Clock& clock) {
    channel_.reset();
    blob_.reset();
    auto blob = BlobServer::Start(options_, *files_, clock);
    ASSERT_TRUE(blob.ok()) << blob.status();
    blob_ = *std::move(blob);
    channel_ = rpc::MakeChannel(absl::StrCat("127.0.0.1:", blob_->port()));
    ASSERT_TRUE(channel_->WaitForConnected(Deadline()));
  }
  void StartAttached() {
    Start();
    ASSERT_TRUE(arbiter_->WaitForInventory());
  }
  bool has_files() const { return GetParam() != "ram"; }

  static v1::SlabId IdOf(const testing::RandomSlab& slab) { return EncodeName(NameOf(slab.meta)); }
  absl::Status Put(const testing::RandomSlab& slab) {
    return rpc::PutSlab(channel_, Header(slab), rpc::SlabBytes::Of(slab.bytes), kTimeout).status();
  }
  static Command DeleteOf(const testing::RandomSlab& slab) {
    Command command;
    *command.mutable_delete_slab()->mutable_slab() = IdOf(slab);
    return command;
  }
  std::optional<Frame> WaitForRemoved(const testing::RandomSlab& slab, v1::RemovalCause cause) {
    return arbiter_->WaitFor([&](const Frame& frame) {
      return frame.removed().slab().key() == IdOf(slab).key() && frame.removed().cause() == cause;
    });
  }
  std::optional<Frame> WaitForAnnounced(const testing::RandomSlab& slab) {
    return arbiter_->WaitFor([&](const Frame& frame) {
      return frame.announced().slab().slab().key() == IdOf(slab).key();
    });
  }
  std::string FileOf(const testing::RandomSlab& slab) const {
    const std::string name = NameOf(slab.meta).ToFileName();
    return absl::StrCat(folder_.path(), "/slabs/", name.substr(0, 2), "/", name);
  }

  const std::unique_ptr<FileSystem> files_ = MakePosixFileSystem();
  const MonotonicClock clock_;
  const testing::FakeClock still_clock_;
  const testing::TempFolder folder_;
  std::unique_ptr<testing::FakeArbiter> arbiter_;
  BlobServerOptions options_;
  std::unique_ptr<BlobServer> blob_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace kvmesh::blob
