// What a store sees of the arbiter, and callers of a store that comes and goes.
#include "tests/rpc/meta/meta_fixture.h"

namespace kvmesh::meta {
namespace {

using ::testing::HasSubstr;
using Stub = v1::MetaService::Stub;

TEST_F(MetaRpcTest, WhatALostStoreHeldIsOfferedAgainAfterItsNextInventory) {
  Start();
  FakeStore store({});
  const std::string text = RowText(1, 5000);
  PutRow(store, text, {2048});
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(store.Attach(channel_).ok());
    ASSERT_TRUE(WaitForHit(text, 5000));
    EXPECT_EQ(HitBytes(text.substr(0, 4000)), 2048U);
    store.Detach();
    ASSERT_TRUE(WaitForHit(text, 0));
  }
}

TEST_F(MetaRpcTest, ARowOnTwoStoresNeedsBoth) {
  Start();
  FakeStore lower({.address = "10.0.0.1:1"});
  FakeStore upper({.address = "10.0.0.2:1"});
  const std::string text = RowText(1, 5000);
  const auto halves = Halves(text, RandomId<WriteId>());
  lower.Put(halves[0]);
  upper.Put(halves[1]);
  ASSERT_TRUE(lower.Attach(channel_).ok());
  ASSERT_TRUE(upper.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(text, 5000));
  const v1::LookupResponse hit = Lookup(text);
  EXPECT_EQ(hit.row().slabs(0).address(), "10.0.0.1:1");
  EXPECT_EQ(hit.row().slabs(1).address(), "10.0.0.2:1");
  upper.Detach();
  ASSERT_TRUE(WaitForHit(text, 0));
  ASSERT_TRUE(upper.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(text, 5000));
}

TEST_F(MetaRpcTest, AStoreThatComesBackWithoutASlabTakesItsRowWithIt) {
  Start();
  FakeStore store({.page_size = 2});
  const std::string kept = RowText(1, 5000);
  const std::string gone = RowText(2, 5000);
  PutRow(store, kept);
  const auto halves = Halves(gone, RandomId<WriteId>());
  for (const FakeSlab& slab : halves) store.Put(slab);
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(gone, 5000));
  store.Detach();
  store.Forget(AnnouncementOf(halves[1]).slab().slab());
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(kept, 5000));
  EXPECT_EQ(HitBytes(gone), 0U);
}

TEST_F(MetaRpcTest, ASecondStoreUnderALiveIdIsRefusedWithBothAddresses) {
  Start();
  const std::string id = RandomId<InstanceId>().ToHex();
  FakeStore first({.id = id, .address = "10.0.0.1:1"});
  FakeStore second({.id = id, .address = "10.0.0.2:1"});
  ASSERT_TRUE(first.Attach(channel_).ok());
  const absl::Status refused = second.Attach(channel_);
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
  EXPECT_EQ(ReasonOf(refused), "STORE_ID_IN_USE");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("10.0.0.1:1"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("10.0.0.2:1"));
  EXPECT_FALSE(first.ended().has_value());
}

TEST_F(MetaRpcTest, AStoreThatFailsItsPingGivesWayToASecondOne) {
  MetaServerOptions options;
  options.loop.arbiter.limits.store_ping_wait = absl::Milliseconds(200);
  Start(options);
  const std::string id = RandomId<InstanceId>().ToHex();
  FakeStore first({.id = id, .address = "10.0.0.1:1", .answers_pings = false});
  FakeStore second({.id = id, .address = "10.0.0.2:1"});
  ASSERT_TRUE(first.Attach(channel_).ok());
  ASSERT_TRUE(WaitUntil([&] { return second.Attach(channel_).ok(); }));
  EXPECT_TRUE(WaitUntil([&] { return first.ended().has_value(); }));
}

TEST_F(MetaRpcTest, AStreamThatIsNoStoresIsEnded) {
  Start();
  FakeStore newer({.protocol = 2});
  const absl::Status refused = newer.Attach(channel_);
  EXPECT_EQ(ReasonOf(refused), reason::kProtocolMismatch) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("protocol 2, the arbiter 1"));
  FakeStore elsewhere({.tier = "tape"});
  EXPECT_TRUE(absl::IsInvalidArgument(elsewhere.Attach(channel_)));

  FakeStore store({});
  ASSERT_TRUE(store.Attach(channel_).ok());
  v1::AttachStoreRequest second_hello;
  second_hello.mutable_hello();
  store.Send(second_hello);
  ASSERT_TRUE(WaitUntil([&] { return store.ended().has_value(); }));
  EXPECT_TRUE(absl::IsInvalidArgument(*store.ended()));

  ASSERT_TRUE(store.Attach(channel_).ok());
  v1::AttachStoreRequest bad_slab;
  *bad_slab.mutable_announced() = AnnouncementOf({.key_namespace = kIndexNamespace, .text = "x"});
  bad_slab.mutable_announced()->mutable_slab()->set_charged_bytes(4097);
  store.Send(bad_slab);
  ASSERT_TRUE(WaitUntil([&] { return store.ended().has_value(); }));
  EXPECT_THAT(std::string(store.ended()->message()), HasSubstr("slab.charged_bytes is 4097"));
}

TEST_F(MetaRpcTest, EvictedSlabsCountUntilTheirStoreHasDeletedThem) {
  Start();
  FakeStore slow({.address = "10.0.0.1:1", .answers_deletes = false});
  const std::string text = RowText(1, 5000);
  ServeRow(slow, text);
  v1::EvictRowsRequest request;
  request.add_keys(slab::ContentKey(kIndexNamespace, text).ToHex());
  request.set_dry_run(true);
  v1::EvictRowsResponse response;
  ASSERT_TRUE(Do(&Stub::EvictRows, request, &response).ok());
  EXPECT_EQ(response.row_count(), 1U);
  EXPECT_EQ(response.size_bytes(), 2U << 20);
  EXPECT_EQ(HitBytes(text), 5000U);

  request.set_dry_run(false);
  ASSERT_TRUE(Do(&Stub::EvictRows, request, &response).ok());
  EXPECT_EQ(HitBytes(text), 0U);
  ASSERT_TRUE(WaitUntil([&] { return slow.deleted().size() == 2; }));
  const auto deleting_bytes = [&] {
    v1::MetaServiceGetStatsResponse stats;
    EXPECT_TRUE(Do(&Stub::GetStats, v1::MetaServiceGetStatsRequest(), &stats).ok());
    return stats.stores_size() == 1 ? stats.stores(0).deleting_bytes() : ~uint64_t{0};
  };
  EXPECT_EQ(deleting_bytes(), 2U << 20);
  for (const FakeSlab& half : Halves(text, WriteId())) {
    v1::AttachStoreRequest removed;
    v1::SlabId& slab = *removed.mutable_removed()->mutable_slab();
    slab = AnnouncementOf(half).slab().slab();
    slab.set_write_id(response.rows(0).write_id());
    removed.mutable_removed()->set_cause(v1::REMOVAL_CAUSE_DELETED);
    slow.Send(removed);
  }
  EXPECT_TRUE(WaitUntil([&] { return deleting_bytes() == 0; }));
}

TEST_F(MetaRpcTest, ASlabThatAReaderCallsBadIsVerifiedByItsStore) {
  Start();
  FakeStore store({});
  const std::string text = RowText(1, 5000);
  ServeRow(store, text);
  const v1::LookupResponse hit = Lookup(text, /*checkout=*/true);
  store.Forget(hit.row().slabs(1).slab());
  v1::CheckinRequest checkin;
  checkin.set_lease_id(hit.lease().lease_id());
  *checkin.add_bad_slabs() = hit.row().slabs(1).slab();
  v1::CheckinResponse response;
  ASSERT_TRUE(Do(&Stub::Checkin, checkin, &response).ok());
  EXPECT_TRUE(WaitForHit(text, 0));
  EXPECT_EQ(store.verified().size(), 1U);
}

TEST_F(MetaRpcTest, TheIncarnationIsAboveAnyThatAStoreHasSeen) {
  FakeStore store({});
  const std::string text = RowText(1, 5000);
  PutRow(store, text);
  uint64_t before = 0;
  std::string id_before;
  for (int round = 0; round < 3; ++round) {
    Start();
    ASSERT_TRUE(store.Attach(channel_).ok());
    EXPECT_TRUE(WaitUntil([&] { return store.incarnation().number() > before; }));
    EXPECT_NE(store.incarnation().id(), id_before);
    before = store.incarnation().number();
    id_before = store.incarnation().id();
    // What is in a store survives any number of arbiters.
    EXPECT_TRUE(WaitForHit(text, 5000));
    store.Detach();
  }
}

}  // namespace
}  // namespace kvmesh::meta
