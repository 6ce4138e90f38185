// What may concern any number of slabs is done in steps; other commands run between them.
#include "tests/unit/meta/arbiter_fixture.h"

namespace kvmesh::meta::testing {
namespace {

constexpr uint32_t kRows = 40;  // keys 0, 2, …: all of one model of two layers
constexpr size_t kStep = 4;

class ArbiterSteps : public ArbiterTest {
 protected:
  ArbiterSteps() : ArbiterTest({.step_slabs = kStep}) {}

  static std::vector<SlabSpec> Row(uint32_t row) {
    return {{.key = 2 * row, .layers = kFirst, .write = 100 + row},
            {.key = 2 * row, .layers = kSecond, .write = 100 + row}};
  }
  StreamId ServeRows(uint32_t store, uint32_t begin, uint32_t end) {
    std::vector<SlabSpec> slabs;
    for (uint32_t row = begin; row < end; ++row) {
      for (const SlabSpec& slab : Row(row)) slabs.push_back(slab);
    }
    const StreamId stream = Serve(store, slabs, 1000);
    Finish();
    return stream;
  }
  // Steps that were left; each drops no more rows than a step has slabs.
  size_t Finish() {
    size_t steps = 0;
    for (; arbiter_.HasMore() && steps < 1000; ++steps) {
      Apply(GoOn{});
      EXPECT_LE(Gone().size(), kStep);
    }
    return steps;
  }
};

TEST_F(ArbiterSteps, AStoreThatComesBackEmptyLosesItsRowsFewAtATimeWhileOthersGoOn) {
  const StreamId lost = ServeRows(1, 0, kRows);
  ServeRows(2, kRows, kRows + 1);
  Apply(StoreGone{.stream = lost});
  Finish();
  const StreamId stream = Serve(1);
  EXPECT_LE(Gone().size(), kStep);
  ASSERT_TRUE(arbiter_.HasMore());
  EXPECT_GT(arbiter_.Counts().rows, kRows / 2);
  // It does not serve before the last of them has gone, and another's row is pinned meanwhile.
  EXPECT_EQ(StoreNow(1).state, StoreState::kInventory);
  Apply(Checkout{.ticket = Ticket{50},
                 .key = KeyOf(2 * kRows),
                 .write_id = IdOf<WriteId>(100 + kRows),
                 .lease = IdOf<LeaseId>(1)});
  EXPECT_NE(Answered<LeaseGrant>(Ticket{50}), nullptr);
  EXPECT_TRUE(Gone().empty());
  // What it announces before the end is its own.
  for (const SlabSpec& slab : Row(kRows + 1)) Announce(stream, slab);
  EXPECT_GE(Finish(), kRows / kStep);
  EXPECT_EQ(StoreNow(1).state, StoreState::kServing);
  EXPECT_EQ(arbiter_.Counts().rows, 2U);
  EXPECT_EQ(States(2 * (kRows + 1)), "AVAILABLE");
  EXPECT_EQ(StoreNow(1).live_bytes, 2 * kPageBytes);
}

TEST_F(ArbiterSteps, AStoreThatIsLostAmongTheStepsKeepsWhatTheyHaveNotReached) {
  const StreamId lost = ServeRows(1, 0, kRows);
  Apply(StoreGone{.stream = lost});
  Finish();
  const StreamId stream = Serve(1);
  Apply(GoOn{});
  const uint64_t left = arbiter_.Counts().rows;
  EXPECT_GT(left, 0U);
  Apply(StoreGone{.stream = stream});
  EXPECT_FALSE(arbiter_.HasMore());
  EXPECT_EQ(arbiter_.Counts().rows, left);
  // Its next inventory decides.
  ServeRows(1, kRows - 1, kRows);
  EXPECT_EQ(arbiter_.Counts().rows, 1U);
  EXPECT_EQ(States(2 * (kRows - 1)), "AVAILABLE");
}

TEST_F(ArbiterSteps, APageAfterTheLastEndsTheStreamAlsoAmongTheSteps) {
  const StreamId lost = ServeRows(1, 0, kRows);
  Apply(StoreGone{.stream = lost});
  Finish();
  const StreamId stream = Serve(1);
  ASSERT_TRUE(arbiter_.HasMore());
  Inventory(stream, {});
  EXPECT_EQ(Closed(stream), "INVALID_ARGUMENT : an inventory page after the last one");
}

TEST_F(ArbiterSteps, EvictingEverythingIsAnsweredWithTheLastStep) {
  const StreamId stream = ServeRows(1, 0, kRows);
  Apply(EvictRows{.ticket = Ticket{50}});
  EXPECT_EQ(Answered<EvictResult>(Ticket{50}), nullptr);
  EXPECT_LE(Gone().size(), kStep);
  const EvictResult* result = nullptr;
  for (int steps = 0; result == nullptr && steps < 1000; ++steps) {
    Apply(GoOn{});
    EXPECT_LE(Told<DeleteSlab>().size(), 2 * kStep);
    result = Answered<EvictResult>(Ticket{50});
  }
  ASSERT_NE(result, nullptr);
  EXPECT_EQ(result->row_count, kRows);
  EXPECT_EQ(result->size_bytes, 2 * kRows * kPageBytes);
  EXPECT_FALSE(arbiter_.HasMore());
  EXPECT_EQ(arbiter_.Counts().rows, 0U);
  for (uint32_t row = 0; row < kRows; ++row) {
    for (const SlabSpec& slab : Row(row)) Deleted(stream, slab);
  }
  EXPECT_EQ(StoreNow(1).occupied_bytes(), 0U);
}

TEST_F(ArbiterSteps, AnEvictionWhoseCallerHasGoneStops) {
  ServeRows(1, 0, kRows);
  Apply(EvictRows{.ticket = Ticket{50}});
  Apply(EvictRows{.ticket = Ticket{51}, .dry_run = true});
  Apply(Abandon{.ticket = Ticket{50}});
  const uint64_t left = arbiter_.Counts().rows;
  EXPECT_GT(left, 0U);
  const EvictResult* result = nullptr;
  for (int steps = 0; result == nullptr && steps < 1000; ++steps) {
    Apply(GoOn{});
    result = Answered<EvictResult>(Ticket{51});
  }
  ASSERT_NE(result, nullptr);
  EXPECT_EQ(result->row_count, left);
  EXPECT_EQ(arbiter_.Counts().rows, left);
}

TEST_F(ArbiterSteps, EvictionsThatWaitAreLimited) {
  ServeRows(1, 0, kRows);
  uint64_t ticket = 100;
  for (size_t i = 0; i < ArbiterLimits().evictions_waiting_max; ++i) {
    Apply(EvictRows{.ticket = Ticket{++ticket}, .dry_run = true});
    EXPECT_EQ(Refused(ticket), "");
  }
  Apply(EvictRows{.ticket = Ticket{++ticket}, .dry_run = true});
  EXPECT_EQ(Refused(ticket), "RESOURCE_EXHAUSTED TOO_MANY_EVICTIONS");
}

// 80 of 100 pages live; a write of 20 would fill it: rows go from above 90 down to 80.
TEST_F(ArbiterSteps, RoomIsMadeInStepsAndTheWriterIsAnsweredWhenThereIsEnough) {
  std::vector<SlabSpec> slabs;
  for (uint32_t row = 0; row < kRows; ++row) {
    for (const SlabSpec& slab : Row(row)) slabs.push_back(slab);
  }
  const StreamId stream = Serve(1, slabs, 100);
  Finish();
  Reserve reserve = RowRequest(900, 7, 10);
  reserve.room_wait = absl::Seconds(5);
  Apply(reserve);
  ASSERT_NE(Answered<ReservationGrant>(Ticket{7}), nullptr);
  ASSERT_TRUE(arbiter_.HasMore());
  EXPECT_EQ(arbiter_.Counts().rows, kRows - kStep);
  EXPECT_GT(Finish(), 0U);
  // 20 reserved and 60 live pages are the low watermark.
  EXPECT_EQ(arbiter_.Counts().rows, 30U);
  EXPECT_EQ(StoreNow(1).live_bytes, 60 * kPageBytes);
  EXPECT_EQ(Closed(stream), "");
}

TEST_F(ArbiterSteps, FragmentsWhoseTimeHasComeGoFewAtATime) {
  std::vector<SlabSpec> slabs;
  for (uint32_t row = 0; row < kRows; ++row) slabs.push_back(Row(row).front());
  const StreamId stream = Serve(1, slabs, 1000);
  Finish();
  EXPECT_EQ(arbiter_.Counts().fragments, kRows);
  KeepAlive(stream, absl::Seconds(595));
  now_ += absl::Seconds(5);
  int ticks = 0;
  for (; arbiter_.NextTimer() <= now_ && ticks < 1000; ++ticks) {
    Apply(Tick{});
    EXPECT_LE(Told<DeleteSlab>().size(), 2 * kStep);  // before the command and after it
  }
  EXPECT_GE(ticks, static_cast<int>(kRows / (2 * kStep)));
  EXPECT_EQ(arbiter_.Counts().fragments, 0U);
}

// Numbers of inventories are 12 bits; none may be taken for another of 4,095 before.
TEST_F(ArbiterSteps, AStoreThatNeverSaysAllItHasLosesItsSlabsWhenItDoes) {
  StreamId stream = ServeRows(1, 0, 1);
  for (int i = 0; i < kInventoryNumberMax; ++i) {
    Apply(StoreGone{.stream = stream});
    Finish();
    stream = Hello(1, 1, 1000);
  }
  EXPECT_EQ(States(0), "STORE_LOST");
  Inventory(stream, {});
  Finish();
  EXPECT_EQ(States(0), "");
}

TEST_F(ArbiterSteps, AForgottenStoreGivesItsPlaceFreeWithTheLastOfItsSlabs) {
  const StreamId stream = ServeRows(1, 0, kRows);
  Apply(StoreGone{.stream = stream});
  Finish();
  After(absl::Seconds(600));
  ASSERT_TRUE(arbiter_.HasMore());
  EXPECT_EQ(arbiter_.Stores().size(), 1U);
  EXPECT_GT(arbiter_.NextTimer(), now_);
  Finish();
  EXPECT_TRUE(arbiter_.Stores().empty());
  EXPECT_EQ(arbiter_.Counts().rows, 0U);
}

// It is back before all was forgotten: its inventory decides what stays.
TEST_F(ArbiterSteps, AStoreMayComeBackWhileItIsForgotten) {
  const StreamId stream = ServeRows(1, 0, kRows);
  Apply(StoreGone{.stream = stream});
  Finish();
  After(absl::Seconds(600));
  ASSERT_TRUE(arbiter_.HasMore());
  ServeRows(1, 0, kRows);
  EXPECT_EQ(arbiter_.Counts().rows, kRows);
  EXPECT_EQ(StoreNow(1).state, StoreState::kServing);
}

}  // namespace
}  // namespace kvmesh::meta::testing
