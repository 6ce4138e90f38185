// Frames that no sound caller sends: each is refused, and the same process goes on serving.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "common/rpc/raw_call.h"
#include "tests/rpc/shard/shard_fixture.h"
#include "tests/testing/bad_text.h"

namespace kvmesh::shard {
namespace {

constexpr LayerRange kTailLayers{3, kLayers};

struct BadFrame {
  std::string name;
  // Changes a sound Compute of four rows for the second of two shards.
  std::function<void(v1::Compute&)> change;
};

class BadFrameTest : public ::testing::TestWithParam<BadFrame> {
 protected:
  static void SetUpTestSuite() {
    clock_ = new MonotonicClock();
    shard_ = new TestShard(StartShard(*clock_, {.layers = kTailLayers}));
  }
  static void TearDownTestSuite() {
    delete shard_;
    delete clock_;
  }
  static forward::Open Open(uint8_t session) {
    forward::Open open = MakeOpen({Ref(*shard_, kTailLayers)}, session, kPrompt);
    open.hop_index = 1;
    return open;
  }
  static v1::ForwardRequest SoundFrame() {
    forward::Compute compute = MakeFrame(forward::CacheMode::kPrefill, kPrompt, 0, 0, kTailLayers);
    compute.hidden.assign(kPrompt.size() * testing::kToyHiddenSize * sizeof(float), '\0');
    return rpc::EncodeFrame(std::move(compute), testing::kToyHiddenSize);
  }
  // A sound generation still works.
  static void ExpectServing() {
    static uint8_t session = 100;
    ForwardClient client(*shard_->stub);
    ASSERT_TRUE(client.Send(Open(++session)));
    ASSERT_TRUE(client.SendRaw(SoundFrame()));
    EXPECT_TRUE(client.ReadToken().has_value());
    client.Send(forward::Close{forward::Disposition::kDrop});
    EXPECT_TRUE(client.End().ok());
  }

  static MonotonicClock* clock_;
  static TestShard* shard_;
};

MonotonicClock* BadFrameTest::clock_ = nullptr;
TestShard* BadFrameTest::shard_ = nullptr;

TEST_P(BadFrameTest, IsAnInvalidArgumentAndTheShardGoesOnServing) {
  static uint8_t session = 10;
  ForwardClient client(*shard_->stub);
  client.Send(Open(++session));
  v1::ForwardRequest request = SoundFrame();
  GetParam().change(*request.mutable_compute());
  client.SendRaw(request);
  const absl::Status end = client.End();
  EXPECT_EQ(end.code(), absl::StatusCode::kInvalidArgument) << end;
  ExpectServing();
}

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

INSTANTIATE_TEST_SUITE_P(
    Frames, BadFrameTest,
    ::testing::ValuesIn(std::vector<BadFrame>{
        {"RowsAndTokensDiffer", [](v1::Compute& c) { c.mutable_hidden()->set_dims(0, 3); }},
        {"OtherHiddenSize",
         [](v1::Compute& c) {
           c.mutable_hidden()->set_dims(1, testing::kToyHiddenSize * 2);
           c.mutable_hidden()->mutable_data()->append(c.hidden().data());
         }},
        {"ThreeDims", [](v1::Compute& c) { c.mutable_hidden()->add_dims(1); }},
        {"NoHidden", [](v1::Compute& c) { c.clear_hidden(); }},
        {"HugeDims",
         [](v1::Compute& c) {
           c.mutable_hidden()->set_dims(0, kHuge);
           c.mutable_hidden()->set_dims(1, kHuge);
         }},
        {"DimsWhoseProductWraps",
         [](v1::Compute& c) { c.mutable_hidden()->set_dims(1, uint64_t{1} << 62); }},
        {"OtherDType", [](v1::Compute& c) { c.mutable_hidden()->set_dtype(v1::DTYPE_F16); }},
        {"UnknownDType",
         [](v1::Compute& c) { c.mutable_hidden()->set_dtype(static_cast<v1::DType>(99)); }},
        {"PastLenNegative", [](v1::Compute& c) { c.set_past_len(static_cast<uint64_t>(-1)); }},
        {"PastLenBeyondTheContext", [](v1::Compute& c) { c.set_past_len(4096); }},
        {"NoPastLen", [](v1::Compute& c) { c.clear_past_len(); }},
        {"IdOutsideTheVocabulary", [](v1::Compute& c) { c.set_tokens(3, testing::kToyVocabSize); }},
        {"HugeId", [](v1::Compute& c) { c.set_tokens(0, 0xffffffff); }},
        {"UnknownCacheMode",
         [](v1::Compute& c) { c.set_cache_mode(static_cast<v1::CacheMode>(17)); }},
        {"LayersBackwards", [](v1::Compute& c) { c.mutable_layers()->set_begin(7); }},
        {"LayersBeyondTheModel", [](v1::Compute& c) { c.mutable_layers()->set_end(4000); }},
        {"ShortData", [](v1::Compute& c) { c.mutable_hidden()->mutable_data()->pop_back(); }}}),
    [](const auto& info) { return info.param.name; });

TEST_F(BadFrameTest, AStreamThatDoesNotBeginWithOpenIsRefused) {
  ForwardClient client(*shard_->stub);
  client.SendRaw(SoundFrame());
  EXPECT_EQ(client.End().code(), absl::StatusCode::kInvalidArgument);
  ExpectServing();
}

TEST_F(BadFrameTest, AnEmptyFrameIsRefused) {
  ForwardClient client(*shard_->stub);
  client.Send(Open(2));
  client.SendRaw({});
  EXPECT_EQ(client.End().code(), absl::StatusCode::kInvalidArgument);
  ExpectServing();
}

TEST_F(BadFrameTest, AnotherProtocolVersionIsRefusedWithBothSidesShown) {
  ForwardClient client(*shard_->stub);
  v1::ForwardRequest request = rpc::EncodeFrame(Open(3), testing::kToyHiddenSize);
  request.mutable_open()->set_protocol_version(limits::kProtocolVersion + 1);
  client.SendRaw(request);
  const absl::Status end = client.End();
  EXPECT_EQ(end.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(end), reason::kProtocolMismatch);
}

TEST_F(BadFrameTest, StateToRestoreIsAFeatureThatIsMissedByName) {
  ForwardClient client(*shard_->stub);
  v1::ForwardRequest request = rpc::EncodeFrame(Open(4), testing::kToyHiddenSize);
  v1::HopRestore& restore = *request.mutable_open()->add_restore();
  restore.set_tokens(4);
  v1::SlabRef& slab = *restore.add_slabs();
  slab.set_store_address("127.0.0.1:1");
  slab.set_key(std::string(32, 'k'));
  slab.mutable_layers()->set_end(1);
  slab.set_write_id(std::string(16, 'w'));
  slab.set_tokens_sha256(std::string(32, 't'));
  client.SendRaw(request);
  EXPECT_EQ(ReasonOf(client.End()), reason::kUnknownFeature);
}

TEST_F(BadFrameTest, AFrameForAnotherInstanceIsRefused) {
  ForwardClient client(*shard_->stub);
  forward::Open open = Open(5);
  open.hops[0].instance = RandomId<InstanceId>();
  client.Send(open);
  const std::optional<ErrorInfo> info = ErrorInfoOf(client.End());
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason, reason::kWrongInstance);
  EXPECT_EQ(info->metadata.at("hop"), "1");
}

TEST_F(BadFrameTest, TextThatIsNotUtf8IsRefusedByNameAndTheShardGoesOnServing) {
  testing::ExpectBadTextIsRefused(rpc::MakeChannel(shard_->address), "kvmesh.v1.ShardService");
  ExpectServing();
}

TEST_F(BadFrameTest, BytesThatAreNoFrameAreRefusedInMidStream) {
  rpc::RawCall call(rpc::MakeChannel(shard_->address), "/kvmesh.v1.ShardService/Forward",
                    kPatience);
  const std::string open = rpc::EncodeFrame(Open(7), testing::kToyHiddenSize).SerializeAsString();
  for (const std::string& bytes : {open, std::string("\x12\x7fshort")}) {
    const grpc::Slice slice(bytes);
    ASSERT_TRUE(call.Write(grpc::ByteBuffer(&slice, 1)));
  }
  grpc::ByteBuffer ignored;
  while (call.Read(&ignored)) {
  }
  EXPECT_EQ(call.Finish().code(), absl::StatusCode::kInvalidArgument);
  ExpectServing();
}

}  // namespace
}  // namespace kvmesh::shard
