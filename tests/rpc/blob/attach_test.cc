// What an attached store says and obeys.
#include <algorithm>
#include <fstream>
#include <set>

#include "common/base/error_info.h"
#include "common/base/limits.h"
#include "common/rpc/status_bridge.h"
#include "common/slab/cut_points.h"
#include "tests/rpc/blob/attach_fixture.h"

namespace kvmesh::blob {
namespace {

using testing::MakeRandomSlab;
using testing::MakeSlabOfSize;
using testing::RandomSlab;

TEST_P(AttachTest, SaysHelloThenItsInventoryThenWhatHappens) {
  const RandomSlab before = MakeRandomSlab({.seed = 1, .token_count = 100});
  arbiter_->WelcomeAs(std::nullopt);
  Start();
  ASSERT_TRUE(Put(before).ok());
  ASSERT_TRUE(arbiter_->WaitForStreams(1));
  ASSERT_TRUE(arbiter_->WaitFor([](const Frame& frame) { return frame.has_hello(); }));
  arbiter_->Welcome(1, std::string(16, 'a'));
  ASSERT_TRUE(arbiter_->WaitForInventory());
  const RandomSlab after = MakeRandomSlab({.seed = 2});
  ASSERT_TRUE(Put(after).ok());
  const auto announced = WaitForAnnounced(after);
  ASSERT_TRUE(announced);

  const std::vector<Frame> frames = arbiter_->Frames();
  ASSERT_TRUE(frames[0].has_hello());
  const v1::StoreHello& hello = frames[0].hello();
  EXPECT_EQ(hello.protocol(), limits::kProtocolVersion);
  EXPECT_EQ(hello.store_id().size(), 16U);
  EXPECT_EQ(hello.boot_id().size(), 16U);
  EXPECT_EQ(hello.address(), absl::StrCat("127.0.0.1:", blob_->port()));
  EXPECT_EQ(hello.node(), "node-a");
  EXPECT_EQ(hello.tier(), GetParam());
  EXPECT_EQ(hello.budget_bytes(), 256U << 20);
  EXPECT_FALSE(hello.has_incarnation_seen());
  ASSERT_TRUE(frames[1].has_inventory());
  ASSERT_EQ(arbiter_->Inventory().size(), 1U);
  const v1::SlabInfo listed = arbiter_->Inventory()[0].slab();
  EXPECT_EQ(listed.slab().key(), before.meta.key.ToHex());
  EXPECT_EQ(listed.token_count(), 100U);
  EXPECT_EQ(static_cast<size_t>(listed.cut_points_size()), before.meta.cut_points.size());
  EXPECT_EQ(listed.namespace_().quant(), before.meta.key_namespace.quant);
  EXPECT_EQ(arbiter_->Inventory()[0].ends_inside_character(),
            slab::EndsInsideCharacter(before.meta.text));
  EXPECT_EQ(announced->announced().slab().charged_bytes(), ChargedBytes(after.bytes.size()));
}

TEST_P(AttachTest, AnInventoryComesInPages) {
  std::set<std::string> keys;
  Start();
  for (uint64_t seed = 1; seed <= kInventoryPageMax + 1; ++seed) {
    const RandomSlab slab = MakeSlabOfSize(seed, 4096);
    auto begun = blob_->store().BeginPut(testing::HeaderOf(slab.meta));
    ASSERT_TRUE(begun.ok()) << begun.status();
    ASSERT_TRUE(begun->put->Append({slab.bytes}).ok());
    ASSERT_TRUE(begun->put->Finish().ok());
    keys.insert(slab.meta.key.ToHex());
    if (seed == 3 && GetParam() == "disk") break;  // a sync each
  }
  ASSERT_TRUE(arbiter_->WaitForInventory());
  arbiter_->End(grpc::Status::OK);
  ASSERT_TRUE(arbiter_->WaitForStreams(2));
  ASSERT_TRUE(arbiter_->WaitForInventory());
  std::set<std::string> listed;
  size_t pages = 0;
  for (const Frame& frame : arbiter_->Frames()) {
    pages += frame.has_inventory();
    EXPECT_LE(static_cast<size_t>(frame.inventory().slabs_size()), kInventoryPageMax);
    for (const auto& slab : frame.inventory().slabs()) listed.insert(slab.slab().slab().key());
  }
  EXPECT_EQ(listed, keys);
  EXPECT_EQ(pages, keys.size() > kInventoryPageMax ? 2U : 1U);
}

// Slabs of thousands of cut points: a page ends long before a thousand of them.
TEST_P(AttachTest, APageOfAnInventoryEndsBeforeFourMebibytes) {
  Start();
  std::vector<std::string> keys;
  for (uint64_t seed = 1; seed <= 7; ++seed) {
    const RandomSlab slab = MakeRandomSlab(
        {.seed = seed, .layers = {0, 1}, .token_count = 6000, .row_values = 1, .align_tokens = 1});
    ASSERT_GT(slab.meta.cut_points.size(), kListedCutPointsMax / 7);
    ASSERT_TRUE(Put(slab).ok());
    keys.push_back(slab.meta.key.ToHex());
  }
  std::sort(keys.begin(), keys.end());
  ASSERT_TRUE(arbiter_->WaitForInventory());
  arbiter_->End(grpc::Status::OK);
  ASSERT_TRUE(arbiter_->WaitForStreams(2));
  ASSERT_TRUE(arbiter_->WaitForInventory());
  std::vector<std::string> listed;
  size_t pages = 0;
  for (const Frame& frame : arbiter_->Frames()) {
    if (!frame.has_inventory()) continue;
    ++pages;
    EXPECT_LE(frame.ByteSizeLong(), 4U << 20);
    EXPECT_EQ(frame.inventory().last(), pages == 2);
    for (const auto& slab : frame.inventory().slabs()) listed.push_back(slab.slab().slab().key());
  }
  EXPECT_EQ(pages, 2U);
  EXPECT_EQ(listed, keys);
  EXPECT_EQ(arbiter_->Inventory().back().slab().cut_points_size(), 4500);
}

TEST(AttachCodec, ThePageOfTheLongestAnnouncementsStaysBelowFourMebibytes) {
  SlabInfo info{.file_bytes = UINT64_MAX >> 2,
                .token_count = 1U << 20,
                .hit_count = UINT32_MAX,
                .text_bytes = slab::kTextBytesMax,
                .payload_crc32c = UINT32_MAX,
                .block_hash = UINT64_MAX,
                .tail_hash = UINT32_MAX,
                .reason = slab::SaveReason::kContinued,
                .ends_inside_character = true,
                .model_layers = 4096};
  info.name.layers = {.begin = 4095, .end = 4096};
  info.key_namespace = {.model_fp = std::string(32, 'm'),
                        .quant = std::string(slab::kLabelBytesMax, 'q'),
                        .ctx_params = std::string(32, 'c')};
  v1::AttachStoreRequest page;
  for (size_t i = 0; i < kInventoryPageMax; ++i) {
    *page.mutable_inventory()->add_slabs() = EncodeAnnouncement(info, uint64_t{1} << 40);
  }
  const slab::CutPoint longest{.token_count = 1U << 20,
                               .text_bytes = slab::kTextBytesMax,
                               .block_hash = UINT64_MAX,
                               .tail_hash = UINT32_MAX};
  info.cut_points.assign(kListedCutPointsMax, longest);
  *page.mutable_inventory()->mutable_slabs(0) = EncodeAnnouncement(info, uint64_t{1} << 40);
  EXPECT_LE(page.ByteSizeLong(), 4U << 20);
  info.cut_points.assign(slab::kCutPointsMax, longest);
  EXPECT_LT(EncodeAnnouncement(info, 0).ByteSizeLong(), limits::kMessageBytesMax / 4);
}

TEST_P(AttachTest, ADeleteIsAnsweredWhenTheLastReaderHasEnded) {
  StartAttached();
  const RandomSlab slab = MakeSlabOfSize(1, 4 << 20);
  ASSERT_TRUE(Put(slab).ok());
  auto reader = blob_->store().BeginGet(NameOf(slab.meta), {});
  ASSERT_TRUE(reader.ok());
  arbiter_->Send(DeleteOf(slab));
  ASSERT_TRUE(WaitUntil([&] { return !blob_->store().Stat(NameOf(slab.meta)).ok(); }));
  // What follows the delete is answered, and the delete is not.
  Command ping;
  ping.mutable_ping();
  arbiter_->Send(ping);
  ASSERT_TRUE(arbiter_->WaitFor([](const Frame& frame) { return frame.has_pong(); }));
  for (const Frame& frame : arbiter_->Frames()) EXPECT_FALSE(frame.has_removed());
  reader->reset();
  EXPECT_TRUE(WaitForRemoved(slab, v1::REMOVAL_CAUSE_DELETED));
  EXPECT_EQ(blob_->store().usage().used_bytes, 0U);
}

TEST_P(AttachTest, ADeleteEndsAPutThatIsOpenAndOneOfNothingIsAnsweredToo) {
  options_.service.stall_timeout = absl::Milliseconds(100);
  Start(still_clock_);  // the Put is looked at often, and never stalls
  ASSERT_TRUE(arbiter_->WaitForInventory());
  const RandomSlab slab = MakeSlabOfSize(1, 4 << 20);
  const auto stub = v1::BlobService::NewStub(channel_);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  v1::PutResponse response;
  const auto writer = stub->Put(&context, &response);
  v1::PutRequest request;
  *request.mutable_header() = Header(slab);
  ASSERT_TRUE(writer->Write(request));
  ASSERT_TRUE(WaitUntil([&] { return blob_->store().OpenPuts().size() == 1; }));
  arbiter_->Send(DeleteOf(slab));
  const absl::Status ended = rpc::FromGrpc(writer->Finish());
  EXPECT_EQ(ended.code(), absl::StatusCode::kAborted) << ended;
  EXPECT_EQ(ReasonOf(ended), "DELETING");
  EXPECT_TRUE(WaitForRemoved(slab, v1::REMOVAL_CAUSE_DELETED));
  EXPECT_EQ(blob_->store().usage().occupied(), 0U);
  const RandomSlab none = MakeSlabOfSize(2, 4096);
  arbiter_->Send(DeleteOf(none));
  EXPECT_TRUE(WaitForRemoved(none, v1::REMOVAL_CAUSE_DELETED));
}

TEST_P(AttachTest, ASlabThatSomebodyElseDeletesIsSaidGone) {
  StartAttached();
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(Put(slab).ok());
  ASSERT_TRUE(*testing::DeleteSlab(blob_->store(), NameOf(slab.meta)));
  EXPECT_TRUE(WaitForRemoved(slab, v1::REMOVAL_CAUSE_OTHER));
}

TEST_P(AttachTest, VerifyIsAnsweredAndABadSlabIsSaidGoneBefore) {
  StartAttached();
  const RandomSlab good = MakeRandomSlab({.seed = 1});
  const RandomSlab bad = MakeRandomSlab({.seed = 2});
  const RandomSlab none = MakeRandomSlab({.seed = 3});
  ASSERT_TRUE(Put(good).ok());
  ASSERT_TRUE(Put(bad).ok());
  if (has_files()) {
    std::fstream file(FileOf(bad), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-40, std::ios::end);
    file.write("X", 1);
  }
  const auto verified = [&](const RandomSlab& slab) {
    Command command;
    *command.mutable_verify_slab()->mutable_slab() = IdOf(slab);
    arbiter_->Send(command);
    const auto frame = arbiter_->WaitFor(
        [&](const Frame& said) { return said.verified().slab().key() == IdOf(slab).key(); });
    EXPECT_TRUE(frame);
    return frame && frame->verified().sound();
  };
  EXPECT_TRUE(verified(good));
  EXPECT_FALSE(verified(none));
  if (!has_files()) return;
  EXPECT_FALSE(verified(bad));
  const std::vector<Frame> frames = arbiter_->Frames();
  const auto gone = std::find_if(frames.begin(), frames.end(), [](const Frame& frame) {
    return frame.removed().cause() == v1::REMOVAL_CAUSE_QUARANTINED;
  });
  const auto answer = std::find_if(frames.begin(), frames.end(), [&](const Frame& frame) {
    return frame.verified().slab().key() == IdOf(bad).key();
  });
  EXPECT_LT(gone, answer);
}

TEST_P(AttachTest, DescribeAnnouncesASlabAgainOrSaysThatItIsNotHere) {
  StartAttached();
  const RandomSlab here = MakeRandomSlab({.seed = 1});
  const RandomSlab none = MakeRandomSlab({.seed = 2});
  ASSERT_TRUE(Put(here).ok());
  ASSERT_TRUE(WaitForAnnounced(here));
  for (const RandomSlab& slab : {here, none}) {
    Command command;
    *command.mutable_describe_slab()->mutable_slab() = IdOf(slab);
    arbiter_->Send(command);
  }
  EXPECT_TRUE(WaitForRemoved(none, v1::REMOVAL_CAUSE_OTHER));
  const std::vector<Frame> frames = arbiter_->Frames();
  EXPECT_EQ(std::count_if(frames.begin(), frames.end(),
                          [](const Frame& frame) { return frame.has_announced(); }),
            2);
}

TEST_P(AttachTest, UseIsRewrittenByTheStoresOwnClockAndSlabsThatWentAreLeftOut) {
  StartAttached();
  const RandomSlab slab = MakeRandomSlab({.seed = 1});
  ASSERT_TRUE(Put(slab).ok());
  Command command;
  for (const RandomSlab& used : {MakeRandomSlab({.seed = 2}), slab}) {
    v1::SlabUse& use = *command.mutable_record_use()->add_uses();
    *use.mutable_slab() = IdOf(used);
    use.set_hit_count(7);
    use.mutable_idle()->set_value(100 * 1000);
  }
  const uint64_t before_s = WallClockSeconds();
  arbiter_->Send(command);
  ASSERT_TRUE(WaitUntil([&] { return blob_->store().Stat(NameOf(slab.meta))->hit_count == 7; }));
  const uint64_t used_s = blob_->store().Stat(NameOf(slab.meta))->last_used_time_s;
  EXPECT_GE(used_s, before_s - 100);
  EXPECT_LE(used_s, WallClockSeconds() - 100);
}

TEST_P(AttachTest, HeartbeatsNameTheWritesOfOpenPuts) {
  options_.meta.heartbeat = absl::Milliseconds(50);
  StartAttached();
  ASSERT_TRUE(arbiter_->WaitFor([](const Frame& frame) { return frame.has_heartbeat(); }));
  const RandomSlab slab = MakeSlabOfSize(1, 1 << 20);
  const auto begun = blob_->store().BeginPut(testing::HeaderOf(slab.meta));
  ASSERT_TRUE(begun.ok());
  const auto heartbeat = arbiter_->WaitFor(
      [](const Frame& frame) { return frame.heartbeat().open_put_write_ids_size() > 0; });
  ASSERT_TRUE(heartbeat);
  EXPECT_EQ(heartbeat->heartbeat().open_put_write_ids(0), slab.meta.write_id.bytes());
  EXPECT_EQ(heartbeat->heartbeat().in_flight_bytes(), ChargedBytes(slab.bytes.size()));
}

TEST_P(AttachTest, TheTextOfASlabIsGivenUpToTheBytesAskedFor) {
  StartAttached();
  const RandomSlab slab = MakeRandomSlab({.seed = 1});
  ASSERT_TRUE(Put(slab).ok());
  const auto ask = [&](uint64_t request, const RandomSlab& about, uint64_t bytes_max) {
    Command command;
    command.mutable_text_request()->set_request(request);
    *command.mutable_text_request()->mutable_slab() = IdOf(about);
    command.mutable_text_request()->set_bytes_max(bytes_max);
    arbiter_->Send(command);
    const auto frame = arbiter_->WaitFor(
        [&](const Frame& said) { return said.has_text() && said.text().request() == request; });
    EXPECT_TRUE(frame);
    return frame ? frame->text() : v1::SlabText();
  };
  EXPECT_EQ(ask(1, slab, 1 << 20).text(), slab.meta.text);
  EXPECT_EQ(ask(2, slab, 5).text(), slab.meta.text.substr(0, 5));
  EXPECT_FALSE(ask(3, MakeRandomSlab({.seed = 2}), 5).has_text());
}

INSTANTIATE_TEST_SUITE_P(Tiers, AttachTest, ::testing::Values("ram", "ram_file", "disk"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvmesh::blob
