// Clients that stall, leave or are too many, on every tier.
#include <atomic>

#include "common/base/error_info.h"
#include "common/slab/pieces.h"
#include "tests/rpc/blob/blob_fixture.h"

namespace kvmesh::blob {
namespace {

using testing::MakeSlabOfSize;
using testing::RandomSlab;

using BlobTransferTest = BlobServiceTest;

// Servers whose clock moves only while a client stalls: nothing else takes long by it.
class BlobStallTest : public BlobServiceTest {
 protected:
  void StartWithStallTimeout() {
    BlobServerOptions options;
    options.service.stall_timeout = absl::Milliseconds(200);
    Start(options, fake_clock_);
  }
  // Lets time pass until a transfer was cut off.
  bool WaitForTheCut() {
    return WaitUntil([this] {
      fake_clock_.Advance(absl::Milliseconds(10));
      return blob_->metrics().Value("kvmesh_blob_stalled_transfers_total") > 0;
    });
  }
};

TEST_P(BlobStallTest, AClientThatStopsSendingIsCutOffAndHoldsNothing) {
  StartWithStallTimeout();
  const RandomSlab slab = MakeSlabOfSize(1, 4 << 20);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  v1::PutResponse response;
  const auto writer = stub_->Put(&context, &response);
  v1::PutRequest header;
  *header.mutable_header() = Header(slab);
  ASSERT_TRUE(writer->Write(header));
  EXPECT_TRUE(WaitForTheCut());
  const absl::Status status = rpc::FromGrpc(writer->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(status), "STALLED");
  EXPECT_TRUE(WaitUntil([&] { return blob_->store().transfers() == 0; }));
  EXPECT_TRUE(WaitUntil([&] { return blob_->store().usage().occupied() == 0; }));
  EXPECT_TRUE(folder_.Files().empty());
  EXPECT_TRUE(Put(slab).ok());
}

TEST_P(BlobStallTest, AClientThatStopsReadingIsCutOffAndHoldsNothing) {
  StartWithStallTimeout();
  const RandomSlab slab = MakeSlabOfSize(1, 64 << 20);
  ASSERT_TRUE(Put(slab).ok());
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const auto reader = stub_->Get(&context, Whole(slab));
  v1::GetResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(WaitForTheCut());
  EXPECT_TRUE(WaitUntil([&] { return blob_->store().transfers() == 0; }));
  while (reader->Read(&response)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_P(BlobTransferTest, ACancelledPutLeavesNothing) {
  Start();
  const RandomSlab slab = MakeSlabOfSize(1, 8 << 20);
  grpc::ClientContext context;
  v1::PutResponse response;
  const auto writer = stub_->Put(&context, &response);
  v1::PutRequest request;
  *request.mutable_header() = Header(slab);
  ASSERT_TRUE(writer->Write(request));
  request.set_chunk(slab.bytes.substr(0, 1 << 20));
  ASSERT_TRUE(writer->Write(request));
  ASSERT_TRUE(WaitUntil([&] { return blob_->store().transfers() == 1; }));
  context.TryCancel();
  EXPECT_FALSE(writer->Finish().ok());
  EXPECT_TRUE(WaitUntil([&] { return blob_->store().usage().occupied() == 0; }));
  EXPECT_TRUE(folder_.Files().empty());
}

TEST_P(BlobTransferTest, ADeleteAnswersWhenTheLastReaderHasEnded) {
  Start();
  const RandomSlab slab = MakeSlabOfSize(1, 64 << 20);
  ASSERT_TRUE(Put(slab).ok());
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const auto reader = stub_->Get(&context, Whole(slab));
  v1::GetResponse response;
  ASSERT_TRUE(reader->Read(&response));
  bool deleted = false;
  std::atomic<bool> answered{false};
  std::thread deleter([&] {
    EXPECT_TRUE(Delete(EncodeName(NameOf(slab.meta)), &deleted).ok());
    answered = true;
  });
  ASSERT_TRUE(WaitUntil([&] { return !blob_->store().Stat(NameOf(slab.meta)).ok(); }));
  EXPECT_FALSE(answered);
  uint64_t bytes = 0;
  while (reader->Read(&response)) bytes += response.chunk().size();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(bytes, slab.bytes.size());
  deleter.join();
  EXPECT_TRUE(deleted);
  EXPECT_TRUE(Delete(EncodeName(NameOf(slab.meta)), &deleted).ok());
  EXPECT_FALSE(deleted);
}

TEST_P(BlobTransferTest, ABoundedNumberOfTransfersRunsAtOnce) {
  BlobServerOptions options;
  options.store.transfers_max = 1;
  Start(options);
  const RandomSlab slab = MakeSlabOfSize(1, 64 << 20);
  ASSERT_TRUE(Put(slab).ok());
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const auto reader = stub_->Get(&context, Whole(slab));
  v1::GetResponse response;
  ASSERT_TRUE(reader->Read(&response));
  const auto refused = Get(Whole(slab));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused.status()), reason::kQueueFull);
  EXPECT_TRUE(RetryDelayOf(refused.status()).has_value());
  context.TryCancel();
  EXPECT_TRUE(WaitUntil([&] { return blob_->store().transfers() == 0; }));
  EXPECT_TRUE(Get(Whole(slab)).ok());
}

// Four pieces of 256 KiB, each of which but the first waits for a sixteenth of a second.
TEST_P(BlobTransferTest, VerifyReadsNoFasterThanItsRateByItsClock) {
  BlobServerOptions options;
  options.service.verify_bytes_per_second = 4 << 20;
  Start(options, fake_clock_);
  const RandomSlab slab = MakeSlabOfSize(1, 1 << 20);
  ASSERT_EQ(slab::AllPieces(slab.meta).size(), 4U);
  ASSERT_TRUE(Put(slab).ok());
  std::atomic<bool> ended{false};
  std::thread verifier([&] {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    const auto reader = stub_->Verify(&context, {});
    v1::VerifyResponse response;
    EXPECT_TRUE(reader->Read(&response));
    ended = true;
    EXPECT_TRUE(response.sound());
    EXPECT_FALSE(reader->Read(&response));
    EXPECT_TRUE(reader->Finish().ok());
  });
  for (int step = 0; step < 3; ++step) {
    // What takes longer than to verify the slab without a pace.
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(Get(Whole(slab)).ok());
    EXPECT_FALSE(ended) << "after " << step << " steps";
    fake_clock_.Advance(absl::Milliseconds(62));
  }
  EXPECT_TRUE(WaitUntil([&] {
    fake_clock_.Advance(absl::Milliseconds(1));
    return ended.load();
  }));
  verifier.join();
}

INSTANTIATE_TEST_SUITE_P(Tiers, BlobStallTest, ::testing::Values("ram", "ram_file", "disk"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Tiers, BlobTransferTest, ::testing::Values("ram", "ram_file", "disk"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvmesh::blob
