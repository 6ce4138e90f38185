// A real store behind its service, on each tier, and its calls.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/blob_client.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "services/blob/grpc/blob_server.h"
#include "tests/rpc/blob/blob_calls.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/store_fixture.h"

namespace kvmesh::blob {

class BlobServiceTest : public ::testing::TestWithParam<std::string> {
 protected:
  BlobServiceTest() : folder_(GetParam()) {}

  void Start(const BlobServerOptions& options = {}) { Start(options, clock_); }
  void Start(BlobServerOptions options, const Clock& clock) {
    blob_.reset();
    options.server.listen = "127.0.0.1:0";
    options.folder = folder_.path();
    options.service.tier = GetParam();
    if (options.store.budget_bytes == 0) options.store.budget_bytes = 256 << 20;
    auto blob = BlobServer::Start(options, *files_, clock);
    ASSERT_TRUE(blob.ok()) << blob.status();
    blob_ = *std::move(blob);
    channel_ = rpc::MakeChannel(absl::StrCat("127.0.0.1:", blob_->port()));
    ASSERT_TRUE(channel_->WaitForConnected(Deadline()));
    stub_ = v1::BlobService::NewStub(channel_);
  }
  absl::StatusOr<v1::PutResponse> Put(const testing::RandomSlab& slab) {
    return rpc::PutSlab(channel_, Header(slab), rpc::SlabBytes::Of(slab.bytes), kTimeout);
  }
  absl::StatusOr<std::string> Get(const v1::GetRequest& request) {
    std::string bytes;
    const auto header = rpc::GetSlab(channel_, request, kTimeout,
                                     [&](const v1::GetHeader&, absl::string_view chunk) {
                                       bytes.append(chunk.data(), chunk.size());
                                       return absl::OkStatus();
                                     });
    if (!header.ok()) return header.status();
    return bytes;
  }
  static v1::GetRequest Whole(const testing::RandomSlab& slab) {
    v1::GetRequest request;
    *request.mutable_slab() = EncodeName(NameOf(slab.meta));
    request.set_part(v1::GET_PART_WHOLE);
    return request;
  }
  absl::Status Delete(const v1::SlabId& id, bool* deleted = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    v1::DeleteRequest request;
    *request.mutable_slab() = id;
    v1::DeleteResponse response;
    const absl::Status status = rpc::FromGrpc(stub_->Delete(&context, request, &response));
    if (deleted != nullptr) *deleted = response.deleted();
    return status;
  }

  std::unique_ptr<FileSystem> files_ = MakePosixFileSystem();
  MonotonicClock clock_;
  testing::FakeClock fake_clock_;
  testing::TempFolder folder_;
  std::unique_ptr<BlobServer> blob_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::BlobService::Stub> stub_;
};

}  // namespace kvmesh::blob
