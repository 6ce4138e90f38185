// docs/arbiter.md, "Store", row by row.
#include "tests/unit/meta/arbiter_fixture.h"

namespace kvmesh::meta::testing {
namespace {

using ArbiterStores = ArbiterTest;

const std::vector<SlabSpec> kRow = {{.key = kKey, .layers = kFirst, .write = 7},
                                    {.key = kKey, .layers = kSecond, .write = 7}};

TEST_F(ArbiterStores, Row1NothingIsOfferedOrReservedBeforeTheInventoryIsComplete) {
  const StreamId stream = Hello(1);
  EXPECT_EQ(StoreNow(1).state, StoreState::kInventory);
  Inventory(stream, kRow, false);
  EXPECT_EQ(States(kKey), "STORE_LOST");
  ASSERT_EQ(follower_.rows().size(), 1U);
  EXPECT_FALSE(follower_.Readable(follower_.rows().begin()->second));
  Apply(RowRequest(2, 8));
  EXPECT_EQ(Refused(8), "UNAVAILABLE NO_STORE");
  Apply(Checkout{.ticket = Ticket{50},
                 .key = KeyOf(kKey),
                 .write_id = IdOf<WriteId>(7),
                 .lease = IdOf<LeaseId>(1)});
  EXPECT_EQ(Refused(50), "NOT_FOUND");
  Inventory(stream, {});
  EXPECT_EQ(States(kKey), "AVAILABLE");
  EXPECT_TRUE(follower_.Readable(follower_.rows().begin()->second));
}

TEST_F(ArbiterStores, Row2AReservedSlabThatTheInventoryNamesHasArrived) {
  const StreamId stream = Serve(1);
  ReserveRow(kKey, 7);
  Apply(StoreGone{.stream = stream});
  Serve(1, kRow);
  EXPECT_EQ(States(kKey), "AVAILABLE");
  EXPECT_EQ(ReservationState(7), "");
}

TEST_F(ArbiterStores, Row3AStoreThatComesBackEmptyHasLostItsRows) {
  const StreamId stream = Serve(1, kRow);
  Apply(StoreGone{.stream = stream});
  EXPECT_EQ(States(kKey), "STORE_LOST");
  Serve(1);
  EXPECT_EQ(States(kKey), "");
  EXPECT_EQ(StoreNow(1).occupied_bytes(), 0U);
  EXPECT_EQ(Gone(), std::vector<GoneCause>{GoneCause::kSlabLost});
}

TEST_F(ArbiterStores, Row3ItsOutstandingDeletesAreSentAgain) {
  const StreamId stream = Serve(1, kRow);
  Apply(EvictRows{.ticket = Ticket{50}});
  Apply(StoreGone{.stream = stream});
  const StreamId again = Hello(1);
  EXPECT_TRUE(Told<DeleteSlab>().empty());
  Inventory(again, kRow);
  EXPECT_EQ(Told<DeleteSlab>(), (std::vector<std::string>{"k0[0,1)w7", "k0[1,2)w7"}));
  EXPECT_EQ(States(kKey), "DELETING");
}

TEST_F(ArbiterStores, Row4AnInventoryPageAfterTheLastEndsTheStream) {
  const StreamId stream = Serve(1);
  Inventory(stream, {});
  EXPECT_EQ(Closed(stream), "INVALID_ARGUMENT : an inventory page after the last one");
  EXPECT_EQ(StoreNow(1).state, StoreState::kLost);
}

TEST_F(ArbiterStores, Row5TheSameProcessMayAttachAnew) {
  const StreamId old = Serve(1, kRow);
  const StreamId anew = Hello(1);
  EXPECT_EQ(Closed(old), "ABORTED SUPERSEDED: the store has attached anew");
  EXPECT_EQ(Closed(anew), "");
  Announce(old, {.key = 2, .layers = kFirst, .write = 9});  // counts for nothing
  EXPECT_EQ(States(2), "");
}

TEST_F(ArbiterStores, Rows6And7AnotherProcessUnderALiveIdIsRefusedWithBothAddresses) {
  const StreamId live = Serve(1, kRow);
  const StreamId other = Hello(1, 2);
  EXPECT_EQ(Closed(other), "");
  Apply(StorePong{.stream = live});
  const std::string why = Closed(other);
  EXPECT_NE(why.find("ALREADY_EXISTS STORE_ID_IN_USE"), std::string::npos) << why;
  EXPECT_NE(why.find("store1:1"), std::string::npos) << why;
  EXPECT_NE(why.find("store1:2"), std::string::npos) << why;
  EXPECT_EQ(States(kKey), "AVAILABLE");
}

TEST_F(ArbiterStores, Row8TheOtherIsAttachedWhenTheLiveOneFailsThePingForFiveSeconds) {
  const StreamId live = Serve(1, kRow);
  const StreamId other = Hello(1, 2);
  After(absl::Milliseconds(4999));
  EXPECT_EQ(StoreNow(1).address, "store1:1");
  After(absl::Milliseconds(1));
  EXPECT_EQ(Closed(live), "ABORTED SUPERSEDED: the store has attached anew");
  EXPECT_EQ(StoreNow(1).address, "store1:2");
  EXPECT_EQ(StoreNow(1).state, StoreState::kInventory);
  Inventory(other, kRow);
  EXPECT_EQ(States(kKey), "AVAILABLE");
}

TEST_F(ArbiterStores, Row8AThirdProcessIsRefusedMeanwhile) {
  Serve(1);
  Hello(1, 2);
  const StreamId third = Hello(1, 3);
  EXPECT_NE(Closed(third).find("STORE_ID_IN_USE"), std::string::npos);
}

TEST_F(ArbiterStores, Row9ASilentStoreIsLostAfterFifteenSeconds) {
  const StreamId stream = Serve(1, kRow);
  After(absl::Milliseconds(14999));
  EXPECT_EQ(States(kKey), "AVAILABLE");
  After(absl::Milliseconds(1));
  EXPECT_EQ(States(kKey), "STORE_LOST");
  EXPECT_NE(Closed(stream), "");
  EXPECT_FALSE(follower_.Readable(follower_.rows().begin()->second));
}

TEST_F(ArbiterStores, Row10ALostStoreIsForgottenAfterSixHundredSeconds) {
  const StreamId stream = Serve(1, kRow);
  Apply(StoreGone{.stream = stream});
  After(absl::Milliseconds(599999));
  EXPECT_EQ(States(kKey), "STORE_LOST");
  After(absl::Milliseconds(1));
  EXPECT_EQ(States(kKey), "");
  EXPECT_TRUE(arbiter_.Stores().empty());
  EXPECT_EQ(arbiter_.NextTimer(), absl::InfiniteDuration());
}

TEST_F(ArbiterStores, TheIncarnationIsAboveAnyThatAStoreHasSeen) {
  const auto hello = [this](uint32_t store, std::optional<Incarnation> seen) {
    Apply(StoreHello{.stream = StreamId{100 + store},
                     .uid = IdOf<StoreUid>(store),
                     .boot = IdOf<InstanceId>(1),
                     .budget_bytes = kPageBytes,
                     .seen = seen});
    std::vector<std::pair<uint64_t, uint64_t>> told;
    for (const Effect& effect : effects_) {
      const auto* message = std::get_if<ToStore>(&effect);
      if (message == nullptr) continue;
      const auto* welcome = std::get_if<Welcome>(&message->message);
      if (welcome == nullptr) continue;
      told.emplace_back(static_cast<uint64_t>(message->stream), welcome->incarnation.number);
    }
    return told;
  };
  using Told = std::vector<std::pair<uint64_t, uint64_t>>;
  const InstanceId other = IdOf<InstanceId>(9);
  EXPECT_EQ(hello(1, std::nullopt), (Told{{101, 1}}));
  EXPECT_EQ(hello(2, Incarnation{1, IdOf<InstanceId>(500)}), (Told{{102, 1}}));  // this one
  EXPECT_EQ(hello(3, Incarnation{1, other}), (Told{{101, 2}, {102, 2}, {103, 2}}));
  EXPECT_EQ(hello(4, Incarnation{1, other}), (Told{{104, 2}}));
  EXPECT_EQ(arbiter_.incarnation().id, IdOf<InstanceId>(500));
}

class ArbiterWithTwoStores : public ArbiterTest {
 protected:
  ArbiterWithTwoStores() : ArbiterTest(ArbiterLimits{.stores_max = 2}) {}
};

TEST_F(ArbiterWithTwoStores, AThirdIsRefusedUntilOneIsForgotten) {
  const StreamId first = Serve(1);
  const StreamId second = Serve(2);
  EXPECT_NE(Closed(Hello(3)).find("TOO_MANY_STORES"), std::string::npos);
  Apply(StoreGone{.stream = first});
  KeepAlive(second, absl::Seconds(600));
  EXPECT_EQ(Closed(Hello(3)), "");
}

TEST_F(ArbiterStores, UseIsReportedAtMostOnceAMinuteForASlab) {
  const StreamId stream = Serve(1, kRow);
  const RowOpened row = follower_.rows().begin()->second;
  const auto uses = [this] {
    std::vector<SlabUse> all;
    for (const Effect& effect : effects_) {
      const auto* message = std::get_if<ToStore>(&effect);
      if (message == nullptr) continue;
      const auto* use = std::get_if<RecordUse>(&message->message);
      if (use != nullptr) all.insert(all.end(), use->uses.begin(), use->uses.end());
    }
    return all;
  };
  Apply(RowHit{.row = row.row, .key = row.key});
  EXPECT_EQ(uses().size(), 2U);
  Apply(RowHit{.row = row.row, .key = row.key});
  EXPECT_TRUE(uses().empty());
  KeepAlive(stream, absl::Milliseconds(59999));
  EXPECT_TRUE(uses().empty());
  KeepAlive(stream, absl::Milliseconds(1));
  ASSERT_EQ(uses().size(), 2U);
  EXPECT_EQ(uses().front().hit_count, 2U);
  EXPECT_EQ(uses().front().idle, absl::Minutes(1));
}

}  // namespace
}  // namespace kvmesh::meta::testing
