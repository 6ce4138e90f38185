// docs/arbiter.md, "Quota", row by row. Keys 0, 2, … are of one namespace, 1, 3, … of another.
#include "tests/unit/meta/arbiter_fixture.h"

namespace kvmesh::meta::testing {
namespace {

constexpr uint64_t kQuotaPages = 20;  // high watermark 18, low one 16

class ArbiterQuota : public ArbiterTest {
 protected:
  ArbiterQuota() : ArbiterQuota(ArbiterLimits()) {}
  explicit ArbiterQuota(const ArbiterLimits& limits) : ArbiterTest(limits) {}

  static Reserve Limited(uint32_t key, uint32_t write, uint32_t pages_each = 1,
                         uint64_t quota_pages = kQuotaPages) {
    Reserve reserve = RowRequest(key, write, pages_each);
    if (LayersOf(NamespaceOfKey(key)) == 3) reserve.ranges.back().layers.end = 3;
    reserve.namespace_bytes_max = quota_pages * kPageBytes;
    return reserve;
  }
  // Reserved and published, a second after what was before.
  void Write(StreamId stream, const Reserve& reserve, uint32_t key, uint32_t write,
             uint32_t pages_each = 1) {
    now_ += absl::Seconds(1);
    Apply(reserve);
    ASSERT_NE(Answered<ReservationGrant>(Ticket{write}), nullptr) << Refused(write);
    const std::vector<GoneCause> gone = Gone();
    for (const RangeBytes& range : reserve.ranges) {
      Announce(stream, {.key = key, .layers = range.layers, .write = write, .pages = pages_each});
    }
    gone_.insert(gone_.end(), gone.begin(), gone.end());
  }
  // Rows of keys 0, 2, …, the oldest first, of two pages each.
  void WriteRows(StreamId stream, uint32_t count) {
    for (uint32_t row = 0; row < count; ++row) {
      Write(stream, Limited(2 * row, 100 + row), 2 * row, 100 + row);
    }
  }

  std::vector<GoneCause> gone_;
};

TEST_F(ArbiterQuota, Row1AWriteUpToTheHighWatermarkIsAdmittedAndNothingGoes) {
  const StreamId stream = Serve(1, {}, 1000);
  WriteRows(stream, 9);
  EXPECT_EQ(arbiter_.Counts().rows, 9U);
  EXPECT_TRUE(gone_.empty());
}

TEST_F(ArbiterQuota, Row2AboveTheHighWatermarkTheOldestGoUntilTheLowOneIsReached) {
  const StreamId stream = Serve(1, {}, 1000);
  WriteRows(stream, 10);
  EXPECT_EQ(gone_, (std::vector<GoneCause>{GoneCause::kQuota, GoneCause::kQuota}));
  EXPECT_EQ(States(0), "DELETING");
  EXPECT_EQ(States(2), "DELETING");
  EXPECT_EQ(States(4), "AVAILABLE");
  EXPECT_EQ(StoreNow(1).live_bytes, 16 * kPageBytes);
}

TEST_F(ArbiterQuota, Row2FragmentsGoBeforeRowsAndWhatIsLeasedStays) {
  const StreamId stream = Serve(1, {}, 1000);
  WriteRows(stream, 8);
  Apply(Checkout{.ticket = Ticket{50},
                 .key = KeyOf(0),
                 .write_id = IdOf<WriteId>(100),
                 .lease = IdOf<LeaseId>(1)});
  ASSERT_NE(Answered<LeaseGrant>(Ticket{50}), nullptr);
  Announce(stream, {.key = 60, .layers = kFirst, .write = 900});  // a stray: a fragment, used last
  ASSERT_EQ(States(60), "FRAGMENT");
  Write(stream, Limited(40, 200), 40, 200);
  EXPECT_EQ(States(60), "DELETING");
  EXPECT_EQ(States(0), "AVAILABLE");
  EXPECT_EQ(States(2), "DELETING");
  EXPECT_EQ(gone_, std::vector<GoneCause>{GoneCause::kQuota});
}

TEST_F(ArbiterQuota, Row3AWriteThatDoesNotFitIsRefusedForNowAndRoomIsMadeForIt) {
  const StreamId stream = Serve(1, {}, 1000);
  WriteRows(stream, 9);
  Apply(Limited(40, 200, 8));
  EXPECT_EQ(Refused(200), "RESOURCE_EXHAUSTED QUOTA");
  EXPECT_TRUE(RetryDelayOf(*Answered<absl::Status>(Ticket{200})).has_value());
  EXPECT_EQ(arbiter_.Counts().rows, 2U);  // 4 pages: 16 more fit
  Write(stream, Limited(40, 201, 8), 40, 201, 8);
  EXPECT_EQ(States(40), "AVAILABLE");
}

TEST_F(ArbiterQuota, Row4AWriteLargerThanTheQuotaIsRefusedForGoodAndNothingGoes) {
  const StreamId stream = Serve(1, {}, 1000);
  WriteRows(stream, 3);
  Apply(Limited(40, 200, 11));
  EXPECT_EQ(Refused(200), "RESOURCE_EXHAUSTED QUOTA");
  EXPECT_FALSE(RetryDelayOf(*Answered<absl::Status>(Ticket{200})).has_value());
  EXPECT_EQ(arbiter_.Counts().rows, 3U);
  Apply(Limited(40, 201, 10));  // all of it
  EXPECT_NE(Refused(201), "");
  Apply(Limited(40, 202, 10));
  EXPECT_NE(Answered<ReservationGrant>(Ticket{202}), nullptr);
}

TEST_F(ArbiterQuota, Row5WhatWaitsForRoomAndWhatIsBeingWrittenCountsAndWhatIsDeletedDoesNot) {
  const StreamId stream = Serve(1, {}, 12);
  Write(stream, Limited(0, 100, 5), 0, 100, 5);
  Reserve waiting = Limited(2, 101, 4);
  waiting.room_wait = absl::Seconds(9);
  Apply(waiting);  // 10 and 8 pages: the row goes, and the store is waited for
  ASSERT_EQ(ReservationState(101), "WAITING_FOR_ROOM");
  Apply(Limited(4, 102, 7));
  EXPECT_EQ(Refused(102), "RESOURCE_EXHAUSTED QUOTA");
  for (const LayerRange layers : {kFirst, kSecond}) {
    Deleted(stream, {.key = 0, .layers = layers, .write = 100});
  }
  ASSERT_EQ(ReservationState(101), "RESERVED");
  Apply(Limited(4, 103, 7));
  EXPECT_EQ(Refused(103), "RESOURCE_EXHAUSTED QUOTA");
  Apply(CancelReservation{.ticket = Ticket{50}, .which = IdOf<WriteId>(101)});
  Reserve next = Limited(4, 104, 6);
  next.room_wait = absl::Seconds(9);
  Apply(next);
  EXPECT_EQ(ReservationState(104), "WAITING_FOR_ROOM");  // the store has not deleted the other yet
}

TEST_F(ArbiterQuota, Row6OneWithoutAWordKeepsTheQuotaAndZeroLiftsIt) {
  const StreamId stream = Serve(1, {}, 1000);
  WriteRows(stream, 9);
  Reserve fragment = RowRequest(40, 200, 3);
  fragment.kind = ReservationKind::kFragment;
  fragment.ranges.pop_back();
  Apply(fragment);
  EXPECT_EQ(Refused(200), "RESOURCE_EXHAUSTED QUOTA");
  fragment.namespace_bytes_max = 0;
  Apply(fragment);
  EXPECT_NE(Answered<ReservationGrant>(Ticket{200}), nullptr);
  Reserve large = RowRequest(42, 201, 30);
  Apply(large);
  EXPECT_NE(Answered<ReservationGrant>(Ticket{201}), nullptr);
}

TEST_F(ArbiterQuota, Row6AQuotaThatIsLoweredIsMet) {
  const StreamId stream = Serve(1, {}, 1000);
  WriteRows(stream, 9);
  Apply(Limited(40, 200, 1, 10));
  EXPECT_EQ(Refused(200), "RESOURCE_EXHAUSTED QUOTA");
  EXPECT_EQ(arbiter_.Counts().rows, 4U);
  Apply(Limited(40, 201, 1, 10));
  EXPECT_NE(Answered<ReservationGrant>(Ticket{201}), nullptr);
}

TEST_F(ArbiterQuota, AnotherNamespaceIsNotTouched) {
  const StreamId stream = Serve(1, {}, 1000);
  for (uint32_t key : {1, 3, 5}) Write(stream, Limited(key, 300 + key, 3), key, 300 + key, 3);
  WriteRows(stream, 20);
  for (uint32_t key : {1, 3, 5}) EXPECT_EQ(States(key), "AVAILABLE");
  EXPECT_LE(StoreNow(1).live_bytes, (18 + kQuotaPages) * kPageBytes);
}

// ---- In steps ----

class ArbiterQuotaSteps : public ArbiterQuota {
 protected:
  static constexpr size_t kStep = 4;
  ArbiterQuotaSteps() : ArbiterQuota({.step_slabs = kStep}) {}
};

TEST_F(ArbiterQuotaSteps, ALargeNamespaceIsGoneThroughInStepsAndTheOldestOfAllGo) {
  const StreamId stream = Serve(1, {}, 1000);
  constexpr uint32_t kRows = 40;
  for (uint32_t row = 0; row < kRows; ++row) {
    Write(stream, Limited(2 * row, 100 + row, 1, 500), 2 * row, 100 + row);
  }
  ASSERT_EQ(arbiter_.Counts().rows, kRows);
  ASSERT_FALSE(arbiter_.HasMore());
  // The first is used again: it is the youngest.
  now_ += absl::Seconds(1);
  for (const RowSnapshot& row : arbiter_.ListRows(std::nullopt, 100, {.key = KeyOf(0)}, now_)) {
    Apply(RowHit{.row = row.id, .key = KeyOf(0)});
  }
  Apply(Limited(400, 900, 1, 50));  // 80 pages are there: 40 shall stay
  EXPECT_EQ(Refused(900), "RESOURCE_EXHAUSTED QUOTA");
  size_t steps = 0;
  for (; arbiter_.HasMore() && steps < 1000; ++steps) {
    Apply(GoOn{});
    EXPECT_LE(Gone().size(), kStep);
  }
  EXPECT_GE(steps, kRows / kStep);
  EXPECT_EQ(arbiter_.Counts().rows, 20U);
  EXPECT_EQ(States(0), "AVAILABLE");
  EXPECT_EQ(States(2), "DELETING");
  EXPECT_EQ(States(2 * 20), "DELETING");
  EXPECT_EQ(States(2 * 21), "AVAILABLE");
}

TEST_F(ArbiterQuotaSteps, WhatIsUsedOrGoesAmongTheStepsIsPassedOver) {
  const StreamId stream = Serve(1, {}, 1000);
  constexpr uint32_t kRows = 40;
  for (uint32_t row = 0; row < kRows; ++row) {
    Write(stream, Limited(2 * row, 100 + row, 1, 500), 2 * row, 100 + row);
  }
  Apply(Limited(400, 900, 1, 50));
  ASSERT_TRUE(arbiter_.HasMore());
  Apply(Checkout{.ticket = Ticket{50},
                 .key = KeyOf(0),
                 .write_id = IdOf<WriteId>(100),
                 .lease = IdOf<LeaseId>(1)});
  Apply(EvictRows{.ticket = Ticket{51}, .keys = {KeyOf(2)}});
  for (size_t steps = 0; arbiter_.HasMore() && steps < 1000; ++steps) Apply(GoOn{});
  EXPECT_EQ(States(0), "AVAILABLE");
  EXPECT_EQ(arbiter_.Counts().rows, 20U);
}

}  // namespace
}  // namespace kvmesh::meta::testing
