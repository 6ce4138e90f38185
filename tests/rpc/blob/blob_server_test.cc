// The server as a whole: what its start found, and who waits for whom.
#include "services/blob/grpc/blob_server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/rpc/blob_client.h"
#include "common/rpc/channel.h"
#include "services/blob/grpc/blob_codec.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/store_fixture.h"

namespace kvmesh::blob {
namespace {

using testing::MakeRandomSlab;
using testing::RandomSlab;

constexpr absl::Duration kTimeout = absl::Seconds(60);

class BlobServerTest : public ::testing::Test {
 protected:
  void Start(uint32_t io_threads = 2) {
    channel_.reset();
    blob_.reset();
    BlobServerOptions options;
    options.server.listen = "127.0.0.1:0";
    options.folder = folder_.path();
    options.store.budget_bytes = 64 << 20;
    options.service.tier = "disk";
    options.service.io_threads = io_threads;
    auto blob = BlobServer::Start(options, files_, clock_);
    ASSERT_TRUE(blob.ok()) << blob.status();
    blob_ = *std::move(blob);
    channel_ = rpc::MakeChannel(absl::StrCat("127.0.0.1:", blob_->port()));
    ASSERT_TRUE(channel_->WaitForConnected(std::chrono::system_clock::now() +
                                           absl::ToChronoSeconds(kTimeout)));
  }
  absl::Status Put(const RandomSlab& slab) {
    v1::PutHeader header;
    *header.mutable_slab() = EncodeName(NameOf(slab.meta));
    header.set_tokens_sha256(std::string(slab.meta.tokens_sha256.bytes()));
    header.set_size_bytes(slab.bytes.size());
    header.set_payload_crc32c(slab.meta.payload_crc32c());
    return rpc::PutSlab(channel_, header, rpc::SlabBytes::Of(slab.bytes), kTimeout).status();
  }
  double Metric(const std::string& name, const metrics::Labels& labels) const {
    return blob_->metrics().Value("kvmesh_blob_" + name, labels);
  }

  testing::FaultyFileSystem files_;
  const MonotonicClock clock_;
  const testing::TempFolder folder_;
  std::unique_ptr<BlobServer> blob_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(BlobServerTest, WhatTheStartRemovedAndWhyIsInMetricsAndStats) {
  const RandomSlab good = MakeRandomSlab({.seed = 1});
  const RandomSlab bad = MakeRandomSlab({.seed = 2});
  Start();
  ASSERT_TRUE(Put(good).ok());
  ASSERT_TRUE(Put(bad).ok());
  blob_.reset();
  const std::string folder = folder_.path() + "/slabs/00";
  std::ofstream(folder + "/.tmp-7") << "half";
  std::ofstream(folder + "/README") << "not ours";
  const std::string name = NameOf(bad.meta).ToFileName();
  std::filesystem::resize_file(
      absl::StrCat(folder_.path(), "/slabs/", name.substr(0, 2), "/", name), 1000);
  Start();
  EXPECT_EQ(Metric("startup_removed_total", {{"cause", "temporary"}}), 1);
  EXPECT_EQ(Metric("startup_left_alone_total", {{"cause", "foreign_name"}}), 1);
  EXPECT_EQ(Metric("startup_quarantined_total", {{"defect", "SLAB_TRUNCATED"}}), 1);
  EXPECT_EQ(Metric("slabs", {}), 1);
  grpc::ClientContext context;
  v1::BlobServiceGetStatsResponse stats;
  const auto stub = v1::BlobService::NewStub(channel_);
  ASSERT_TRUE(stub->GetStats(&context, {}, &stats).ok());
  EXPECT_EQ(stats.startup_removed().at("temporary"), 1U);
  EXPECT_EQ(stats.startup_quarantined().at("SLAB_TRUNCATED"), 1U);
  EXPECT_GT(stats.quarantined_bytes(), 0U);
}

TEST_F(BlobServerTest, ADeleteDoesNotWaitBehindPutsThatTheMediumHoldsUp) {
  Start(/*io_threads=*/1);
  const RandomSlab old = MakeRandomSlab({.seed = 1});
  const RandomSlab held_up = MakeRandomSlab({.seed = 2});
  ASSERT_TRUE(Put(old).ok());
  Mutex mutex;
  CondVar changed;
  bool writing = false;
  bool released = false;
  files_.SetHold([&](const std::string& operation) {
    if (operation != "write") return;
    MutexLock lock(&mutex);
    writing = true;
    changed.NotifyAll();
    while (!released) changed.WaitFor(&mutex, absl::Milliseconds(20));
  });
  absl::Status put;
  std::thread putter([&] { put = Put(held_up); });
  {
    MutexLock lock(&mutex);
    while (!writing) changed.WaitFor(&mutex, absl::Milliseconds(20));
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kTimeout));
  v1::DeleteRequest request;
  *request.mutable_slab() = EncodeName(NameOf(old.meta));
  v1::DeleteResponse response;
  const auto stub = v1::BlobService::NewStub(channel_);
  EXPECT_TRUE(stub->Delete(&context, request, &response).ok());
  EXPECT_TRUE(response.deleted());
  {
    MutexLock lock(&mutex);
    released = true;
  }
  putter.join();
  EXPECT_TRUE(put.ok()) << put;
  files_.SetHold(nullptr);
}

}  // namespace
}  // namespace kvmesh::blob
