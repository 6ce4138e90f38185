// docs/arbiter.md, "Groups", row by row.
#include "tests/unit/meta/arbiter_fixture.h"

namespace kvmesh::meta::testing {
namespace {

using ArbiterGroups = ArbiterTest;

TEST_F(ArbiterGroups, Row1AWriteIsARowOnceItsLastSlabIsThereAndNotBefore) {
  const StreamId stream = Serve(1);
  ReserveRow(kKey, 7);
  Announce(stream, {.key = kKey, .layers = kFirst, .write = 7});
  EXPECT_EQ(States(kKey), "WRITING");
  EXPECT_TRUE(follower_.rows().empty());
  Announce(stream, {.key = kKey, .layers = kSecond, .write = 7});
  EXPECT_EQ(States(kKey), "AVAILABLE");
  ASSERT_EQ(follower_.rows().size(), 1U);
}

TEST_F(ArbiterGroups, Row1ARowHasTheCutPointsThatAllItsSlabsList) {
  const StreamId stream = Serve(1);
  ReserveRow(kKey, 7);
  Announce(stream, {.key = kKey, .layers = kFirst, .write = 7, .cut_points = 0b011});
  Announce(stream, {.key = kKey, .layers = kSecond, .write = 7, .cut_points = 0b110});
  ASSERT_EQ(follower_.rows().size(), 1U);
  const std::vector<slab::CutPoint>& points = follower_.rows().begin()->second.cut_points;
  ASSERT_EQ(points.size(), 1U);
  EXPECT_EQ(points.front().token_count, 200U);
}

TEST_F(ArbiterGroups, Row2AWriteOfAKeyThatGotARowMeanwhileLeavesFragments) {
  const StreamId stream = Serve(1);
  ReserveRow(kKey, 7);
  for (const LayerRange layers : {kFirst, kSecond}) {
    Announce(stream, {.key = kKey, .layers = layers, .write = 8});
  }
  EXPECT_EQ(States(kKey), "AVAILABLE WRITING");
  for (const LayerRange layers : {kFirst, kSecond}) {
    Announce(stream, {.key = kKey, .layers = layers, .write = 7});
  }
  EXPECT_EQ(States(kKey), "AVAILABLE FRAGMENT FRAGMENT");
}

TEST_F(ArbiterGroups, Row2ATextThatEndsInsideACharacterIsNeverARow) {
  const StreamId stream = Serve(1);
  ReserveRow(kKey, 7);
  for (const LayerRange layers : {kFirst, kSecond}) {
    Announce(stream, {.key = kKey, .layers = layers, .write = 7, .inside_character = true});
  }
  EXPECT_EQ(States(kKey), "FRAGMENT FRAGMENT");
  EXPECT_TRUE(follower_.rows().empty());
}

TEST_F(ArbiterGroups, Row3ARowOfALostStoreIsDisplacedByANewOne) {
  const StreamId lost = Serve(1);
  WriteRow(lost, kKey, 7);
  const StreamId other = Serve(2);
  Apply(StoreGone{.stream = lost});
  EXPECT_EQ(States(kKey), "STORE_LOST");
  ReserveRow(kKey, 8);
  for (const LayerRange layers : {kFirst, kSecond}) {
    Announce(other, {.key = kKey, .layers = layers, .write = 8});
  }
  EXPECT_EQ(States(kKey), "AVAILABLE FRAGMENT FRAGMENT");
  EXPECT_EQ(Gone(), std::vector<GoneCause>{GoneCause::kDisplaced});
}

TEST_F(ArbiterGroups, Row4ASlabLargerThanReservedOrOfAnotherTokenisationEndsTheWrite) {
  const StreamId stream = Serve(1);
  ReserveRow(kKey, 7);
  Announce(stream, {.key = kKey, .layers = kFirst, .write = 7, .pages = 2});
  EXPECT_EQ(States(kKey), "DELETING");
  EXPECT_EQ(Told<DeleteSlab>(), (std::vector<std::string>{"k0[0,1)w7", "k0[1,2)w7"}));

  ReserveRow(2, 8);
  Announce(stream, {.key = 2, .tokenisation = 0, .layers = kFirst, .write = 8});
  Announce(stream, {.key = 2, .tokenisation = 1, .layers = kSecond, .write = 8});
  EXPECT_EQ(States(2), "DELETING");
  EXPECT_TRUE(follower_.rows().empty());
}

TEST_F(ArbiterGroups, Row5AFragmentLivesSixHundredSecondsUnlessItIsLeased) {
  const StreamId stream = Serve(1, {{.key = kKey, .layers = kFirst, .write = 7}});
  KeepAlive(stream, absl::Seconds(599));
  EXPECT_EQ(States(kKey), "FRAGMENT");
  const SlabFacts facts = FactsOf({.key = kKey, .layers = kFirst, .write = 7});
  Apply(AwaitFragment{.ticket = Ticket{1},
                      .key_namespace = facts.key_namespace,
                      .layers = kFirst,
                      .positions = {{facts.name.key, facts.tokens_sha256, facts.token_count}},
                      .lease = IdOf<LeaseId>(1)});
  ASSERT_NE(Answered<FragmentGrant>(Ticket{1}), nullptr);
  KeepAlive(stream, absl::Seconds(1));
  EXPECT_EQ(States(kKey), "FRAGMENT");
  KeepAlive(stream, absl::Seconds(600));
  EXPECT_EQ(States(kKey), "DELETING");
}

TEST_F(ArbiterGroups, Row6FragmentsOfOneTokenisationThatCoverAllLayersBecomeARow) {
  const StreamId stream = Serve(1);
  Announce(stream, {.key = kKey, .tokenisation = 0, .layers = kFirst, .write = 7});
  Announce(stream, {.key = kKey, .tokenisation = 1, .layers = kSecond, .write = 8});
  EXPECT_EQ(States(kKey), "FRAGMENT FRAGMENT");
  Announce(stream, {.key = kKey, .tokenisation = 0, .layers = kSecond, .write = 9});
  EXPECT_EQ(States(kKey), "AVAILABLE FRAGMENT");
  const RowOpened& row = follower_.rows().begin()->second;
  EXPECT_EQ(row.tokens_sha256, FactsOf({.key = kKey}).tokens_sha256);
  ASSERT_EQ(row.slabs.size(), 2U);
  EXPECT_EQ(NumberOf(row.slabs[0].write_id), 7U);
  EXPECT_EQ(NumberOf(row.slabs[1].write_id), 9U);
}

TEST_F(ArbiterGroups, Row6FragmentsWaitUntilSomebodySaysHowManyLayersTheModelHas) {
  const StreamId stream = Serve(1);
  for (const LayerRange layers : {kFirst, kSecond}) {
    Announce(stream, {.key = kKey, .layers = layers, .write = 7, .says_layers = false});
  }
  EXPECT_EQ(States(kKey), "FRAGMENT FRAGMENT");
  Apply(RowRequest(2, 8));  // the same namespace
  EXPECT_EQ(States(kKey), "AVAILABLE");
}

TEST_F(ArbiterGroups, Row7CutPointsOfASlabThatLeftARowAreAskedForBeforeItIsInAnother) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  Deleted(stream, {.key = kKey, .layers = kSecond, .write = 7});
  EXPECT_EQ(States(kKey), "FRAGMENT");
  Announce(stream, {.key = kKey, .layers = kSecond, .write = 9, .cut_points = 0b111});
  EXPECT_EQ(Told<DescribeSlab>(), std::vector<std::string>{"k0[0,1)w7"});
  EXPECT_EQ(States(kKey), "FRAGMENT FRAGMENT");
  Announce(stream, {.key = kKey, .layers = kFirst, .write = 7, .cut_points = 0b001});
  EXPECT_EQ(States(kKey), "AVAILABLE");
  EXPECT_EQ(follower_.rows().begin()->second.cut_points.size(), 1U);
}

TEST_F(ArbiterGroups, Row8AnEvictedRowIsOutOfSightAtOnceAndItsBytesFreeWithTheAnswer) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  Apply(EvictRows{.ticket = Ticket{50}, .keys = {KeyOf(kKey)}});
  EXPECT_TRUE(follower_.rows().empty());
  EXPECT_EQ(StoreNow(1).deleting_bytes, 2 * kPageBytes);
  Deleted(stream, {.key = kKey, .layers = kFirst, .write = 7});
  EXPECT_EQ(StoreNow(1).deleting_bytes, kPageBytes);
  Deleted(stream, {.key = kKey, .layers = kSecond, .write = 7});
  EXPECT_EQ(StoreNow(1).occupied_bytes(), 0U);
  EXPECT_EQ(States(kKey), "");
}

TEST_F(ArbiterGroups, Row9ARowThatLostASlabLeavesFragments) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  Apply(SlabRemoved{.stream = stream,
                    .name = FactsOf({.key = kKey, .layers = kFirst, .write = 7}).name,
                    .cause = RemovalCause::kQuarantined});
  EXPECT_EQ(States(kKey), "FRAGMENT");
  EXPECT_TRUE(follower_.rows().empty());
  EXPECT_EQ(Gone(), std::vector<GoneCause>{GoneCause::kSlabBad});
}

TEST_F(ArbiterGroups, Row9ASlabThatComesBackWithOtherBytesIsDeleted) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  Announce(stream, {.key = kKey, .layers = kFirst, .write = 7, .bytes_variant = 1});
  EXPECT_EQ(States(kKey), "DELETING FRAGMENT");
  EXPECT_EQ(Told<DeleteSlab>(), std::vector<std::string>{"k0[0,1)w7"});
}

TEST_F(ArbiterGroups, Row10WhatIsBeingDeletedStaysUntilEachStoreHasAnswered) {
  const StreamId first = Serve(1, {{.key = kKey, .layers = kFirst, .write = 7}});
  Serve(2, {{.key = kKey, .layers = kSecond, .write = 8}});
  ASSERT_EQ(States(kKey), "AVAILABLE");
  Apply(EvictRows{.ticket = Ticket{50}, .keys = {KeyOf(kKey)}});
  EXPECT_EQ(Told<DeleteSlab>(), (std::vector<std::string>{"k0[0,1)w7", "k0[1,2)w8"}));
  Deleted(first, {.key = kKey, .layers = kFirst, .write = 7});
  EXPECT_EQ(States(kKey), "DELETING");
}

TEST_F(ArbiterGroups, ARestartedArbiterFindsItsRowsInTheInventories) {
  const StreamId first = Hello(1);
  Inventory(first, {{.key = kKey, .layers = kFirst, .write = 7}}, false);
  EXPECT_EQ(States(kKey), "FRAGMENT");
  Inventory(first, {{.key = kKey, .layers = kSecond, .write = 7}, {.key = 2, .layers = kFirst}});
  EXPECT_EQ(States(kKey), "AVAILABLE");
  EXPECT_EQ(States(2), "FRAGMENT");
}

TEST_F(ArbiterGroups, WhatIsAnnouncedUnderACancelledWriteIsDeletedForSixHundredSeconds) {
  const StreamId stream = Serve(1);
  ReserveRow(kKey, 7);
  Apply(CancelReservation{.ticket = Ticket{50}, .which = IdOf<WriteId>(7)});
  for (const LayerRange layers : {kFirst, kSecond}) {
    Deleted(stream, {.key = kKey, .layers = layers, .write = 7});
  }
  EXPECT_EQ(States(kKey), "");
  KeepAlive(stream, absl::Milliseconds(599999));
  Announce(stream, {.key = kKey, .layers = kFirst, .write = 7});
  EXPECT_EQ(States(kKey), "DELETING");
  KeepAlive(stream, absl::Milliseconds(1));
  Announce(stream, {.key = kKey, .layers = kSecond, .write = 7});
  EXPECT_EQ(States(kKey), "DELETING FRAGMENT");
}

}  // namespace
}  // namespace kvmesh::meta::testing
