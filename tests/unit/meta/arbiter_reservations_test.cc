// docs/arbiter.md, "Reservation" and "Room", row by row.
#include "tests/unit/meta/arbiter_fixture.h"

namespace kvmesh::meta::testing {
namespace {

using ArbiterReservations = ArbiterTest;

TEST_F(ArbiterReservations, Row1TheFirstTierOfTheReasonThatCanMakeRoomIsTaken) {
  Serve(1, {}, 100, Tier::kDisk);
  Serve(2, {}, 10, Tier::kRamFile);
  Reserve small = RowRequest(kKey, 7, 5);
  Apply(small);
  EXPECT_EQ(Answered<ReservationGrant>(Ticket{7})->ranges.front().tier, Tier::kRamFile);
  Apply(RowRequest(2, 8, 6));
  EXPECT_EQ(Answered<ReservationGrant>(Ticket{8})->ranges.front().tier, Tier::kDisk);
  Reserve finish = RowRequest(4, 9);
  finish.reason = slab::SaveReason::kFinish;
  Apply(finish);
  EXPECT_EQ(Answered<ReservationGrant>(Ticket{9})->ranges.front().tier, Tier::kDisk);
  Reserve wanted = RowRequest(6, 10);
  wanted.tier = Tier::kRam;
  Apply(wanted);
  EXPECT_EQ(Refused(10), "UNAVAILABLE NO_STORE");
}

TEST_F(ArbiterReservations, Row1ASecondStoreOfTheTierIsUsedOnlyWhenOneIsFull) {
  Serve(1, {}, 10);
  Serve(2, {}, 9);
  Apply(RowRequest(kKey, 7, 4));
  EXPECT_EQ(Answered<ReservationGrant>(Ticket{7})->ranges[0].store, IdOf<StoreUid>(1));
  EXPECT_EQ(Answered<ReservationGrant>(Ticket{7})->ranges[1].store, IdOf<StoreUid>(1));
  Apply(RowRequest(2, 8, 5));
  EXPECT_EQ(Refused(8), "RESOURCE_EXHAUSTED NO_ROOM");
  Apply(RowRequest(2, 8, 2));
  EXPECT_EQ(Answered<ReservationGrant>(Ticket{8})->ranges[0].store, IdOf<StoreUid>(2));
}

TEST_F(ArbiterReservations, Rows2To4AKeyWithARowAWriteOrADeleteIsRefused) {
  const StreamId stream = Serve(1);
  ReserveRow(kKey, 7);
  Apply(RowRequest(kKey, 8));
  EXPECT_EQ(Refused(8), "ABORTED BEING_WRITTEN");
  for (const LayerRange layers : {kFirst, kSecond}) {
    Announce(stream, {.key = kKey, .layers = layers, .write = 7});
  }
  Apply(RowRequest(kKey, 8));
  EXPECT_EQ(Refused(8), "ALREADY_EXISTS");
  Apply(EvictRows{.ticket = Ticket{50}});
  Apply(RowRequest(kKey, 8));
  EXPECT_EQ(Refused(8), "ABORTED DELETING");
  for (const LayerRange layers : {kFirst, kSecond}) {
    Deleted(stream, {.key = kKey, .layers = layers, .write = 7});
  }
  ReserveRow(kKey, 8);
}

TEST_F(ArbiterReservations, Row4ADeleteInALostStoreHoldsNobodyUp) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  Apply(EvictRows{.ticket = Ticket{50}});
  Apply(StoreGone{.stream = stream});
  Serve(2);
  ReserveRow(kKey, 8);
}

TEST_F(ArbiterReservations, AnyNumberOfFragmentsOfOneKeyMayBeWritten) {
  Serve(1);
  for (const uint32_t write : {7U, 8U, 9U}) {
    Reserve fragment = RowRequest(kKey, write);
    fragment.kind = ReservationKind::kFragment;
    fragment.ranges = {{kFirst, 1}};
    Apply(fragment);
    EXPECT_NE(Answered<ReservationGrant>(Ticket{write}), nullptr);
  }
  ReserveRow(kKey, 10);
}

TEST_F(ArbiterReservations, Row5RefusalsSayWhetherItMayEverFit) {
  Apply(RowRequest(kKey, 7));
  EXPECT_EQ(Refused(7), "UNAVAILABLE NO_STORE");
  Serve(1, {}, 10);
  Apply(RowRequest(kKey, 7, 5));
  EXPECT_NE(Answered<ReservationGrant>(Ticket{7}), nullptr);
  Apply(RowRequest(2, 8, 5));
  EXPECT_EQ(Refused(8), "RESOURCE_EXHAUSTED NO_ROOM");
  Apply(RowRequest(2, 8, 6));
  EXPECT_EQ(Refused(8), "RESOURCE_EXHAUSTED TOO_LARGE");
}

TEST_F(ArbiterReservations, MalformedRangesAreRefusedByName) {
  Serve(1);
  const auto refused = [this](const Reserve& request) {
    Apply(request);
    const auto* status = Answered<absl::Status>(request.ticket);
    return status == nullptr ? std::string("granted") : std::string(status->message());
  };
  Reserve gap = RowRequest(kKey, 7);
  gap.ranges.erase(gap.ranges.begin());
  EXPECT_EQ(refused(gap), "a range begins with layer 1, not 0: those of a row follow one another");
  Reserve shorter = RowRequest(kKey, 7);
  shorter.ranges.pop_back();
  EXPECT_EQ(refused(shorter), "the ranges end at layer 1 of 2");
  Reserve empty = RowRequest(kKey, 7);
  empty.ranges[0].size_bytes = 0;
  EXPECT_EQ(refused(empty), "size_bytes is 0, not 1 to 8796093022208");
  Reserve beyond = RowRequest(kKey, 7);
  beyond.ranges[1].layers.end = 3;
  EXPECT_EQ(refused(beyond), "layers [1, 3) are no range of 2 layers");
  Reserve largest = RowRequest(kKey, 7);
  largest.ranges[0].size_bytes = kSlabBytesMax;
  EXPECT_NE(refused(largest).find("more than the budgets"), std::string::npos);
  largest.ranges[0].size_bytes = kSlabBytesMax + 1;
  EXPECT_NE(refused(largest).find("size_bytes is 8796093022209"), std::string::npos);
  EXPECT_EQ(refused(RowRequest(kKey, 7)), "granted");
  Reserve other_model = RowRequest(2, 8);
  other_model.model_layers = 3;
  other_model.ranges[1].layers.end = 3;
  EXPECT_EQ(refused(other_model), "model_layers is 3; this namespace's model has 2");
}

TEST_F(ArbiterReservations, Row6RoomIsMadeBeforeTheAnswerAndInOrder) {
  const StreamId stream = Serve(1, {}, 10);
  WriteRow(stream, kKey, 7, 4);
  Reserve large = RowRequest(2, 8, 3);
  large.room_wait = absl::Seconds(5);
  Apply(large);
  EXPECT_EQ(Told<DeleteSlab>(), (std::vector<std::string>{"k0[0,1)w7", "k0[1,2)w7"}));
  EXPECT_EQ(ReservationState(8), "WAITING_FOR_ROOM");
  Reserve small = RowRequest(4, 9, 1);  // would fit beside what is there
  small.room_wait = absl::Seconds(5);
  Apply(small);
  EXPECT_EQ(ReservationState(9), "WAITING_FOR_ROOM");
  Deleted(stream, {.key = kKey, .layers = kFirst, .write = 7});
  EXPECT_EQ(ReservationState(8), "RESERVED");
  EXPECT_NE(Answered<ReservationGrant>(Ticket{8}), nullptr);
  EXPECT_EQ(StoreNow(1).occupied_bytes(), 10 * kPageBytes);
  EXPECT_EQ(ReservationState(9), "WAITING_FOR_ROOM");
  Deleted(stream, {.key = kKey, .layers = kSecond, .write = 7});
  EXPECT_NE(Answered<ReservationGrant>(Ticket{9}), nullptr);
}

TEST_F(ArbiterReservations, Row7WaitingEndsWithItsTimeItsStoreOrItsCaller) {
  const StreamId stream = Serve(1, {}, 10);
  WriteRow(stream, kKey, 7, 4);
  const auto wait = [this](uint32_t write) {
    Reserve request = RowRequest(2, write, 3);
    request.room_wait = absl::Seconds(5);
    Apply(request);
    EXPECT_EQ(ReservationState(write), "WAITING_FOR_ROOM");
  };
  wait(8);
  After(absl::Milliseconds(4999));
  EXPECT_EQ(Refused(8), "");
  After(absl::Milliseconds(1));
  EXPECT_EQ(Refused(8), "RESOURCE_EXHAUSTED NO_ROOM");
  wait(9);
  Apply(Abandon{.ticket = Ticket{9}});
  EXPECT_EQ(ReservationState(9), "");
  wait(10);
  Apply(StoreGone{.stream = stream});
  EXPECT_EQ(Refused(10), "UNAVAILABLE NO_STORE");
}

TEST_F(ArbiterReservations, Row8TheSameRequestAgainIsTheSameReservation) {
  Serve(1);
  ReserveRow(kKey, 7);
  Reserve again = RowRequest(kKey, 7);
  again.ticket = Ticket{60};
  again.write_id = IdOf<WriteId>(61);
  Apply(again);
  ASSERT_NE(Answered<ReservationGrant>(Ticket{60}), nullptr);
  EXPECT_EQ(Answered<ReservationGrant>(Ticket{60})->write_id, IdOf<WriteId>(7));
  again.key = KeyOf(2);
  Apply(again);
  EXPECT_EQ(Refused(60), "INVALID_ARGUMENT");
}

TEST_F(ArbiterReservations, Row15AWriteIdThatASlabOfTheKeyHasIsRefused) {
  const StreamId stream = Serve(1, {}, 4);
  Announce(stream, {.key = kKey, .layers = kFirst, .write = 7});
  const auto reserve = [this](uint32_t key, uint32_t write) {
    Reserve request = RowRequest(key, write);
    request.ticket = Ticket{write};
    request.room_wait = absl::Seconds(5);
    Apply(request);
  };
  reserve(kKey, 7);
  EXPECT_EQ(Refused(7), "INVALID_ARGUMENT");
  reserve(kKey, 8);
  EXPECT_EQ(ReservationState(8), "RESERVED");
  Apply(CancelReservation{.ticket = Ticket{50}, .which = IdOf<WriteId>(8)});
  reserve(kKey, 8);  // slabs of it may still arrive
  EXPECT_EQ(Refused(8), "INVALID_ARGUMENT");
}

TEST_F(ArbiterReservations, Row15AWriteThatWaitedIsRefusedIfASlabOfItsNameIsThereByThen) {
  const StreamId stream = Serve(1, {}, 10);
  WriteRow(stream, 2, 6, 4);
  Reserve request = RowRequest(kKey, 7, 3);
  request.room_wait = absl::Seconds(5);
  Apply(request);
  ASSERT_EQ(ReservationState(7), "WAITING_FOR_ROOM");
  Announce(stream, {.key = kKey, .layers = kFirst, .write = 7});
  for (const LayerRange layers : {kFirst, kSecond}) {
    Deleted(stream, {.key = 2, .layers = layers, .write = 6});
    if (Refused(7) != "") break;
  }
  EXPECT_EQ(Refused(7), "INVALID_ARGUMENT");
  EXPECT_EQ(ReservationState(7), "");
  EXPECT_EQ(States(kKey), "FRAGMENT");
}

TEST_F(ArbiterReservations, Row9TheTtlStartsAgainWithASlabARenewalOrAHeartbeatOfItsStore) {
  const StreamId stream = Serve(1);
  const StreamId other = Serve(2, {}, 20);
  ReserveRow(kKey, 7);
  const auto later = [this](absl::Duration time, StreamId with_put) { KeepAlive(with_put, time); };
  later(absl::Seconds(59), stream);
  Announce(stream, {.key = kKey, .layers = kFirst, .write = 7});
  EXPECT_EQ(ReservationState(7), "PARTIAL");
  later(absl::Seconds(59), stream);
  Apply(Renew{.ticket = Ticket{50}, .writes = {IdOf<WriteId>(7)}});
  EXPECT_TRUE(Answered<RenewResult>(Ticket{50})->unknown_writes.empty());
  later(absl::Seconds(59), stream);
  Apply(StoreHeartbeat{.stream = stream, .open_puts = {IdOf<WriteId>(7)}});
  later(absl::Seconds(59), stream);
  Apply(StoreHeartbeat{.stream = other, .open_puts = {IdOf<WriteId>(7)}});
  EXPECT_EQ(ReservationState(7), "PARTIAL");
  later(absl::Seconds(1), stream);
  EXPECT_EQ(ReservationState(7), "EXPIRED");
}

TEST_F(ArbiterReservations, Row11OneThatNothingCameOfKeepsItsBytesUntilTheStoreAnswers) {
  const StreamId stream = Serve(1);
  ReserveRow(kKey, 7);
  KeepAlive(stream, absl::Milliseconds(59999));
  EXPECT_EQ(ReservationState(7), "RESERVED");
  KeepAlive(stream, absl::Milliseconds(1));
  EXPECT_EQ(ReservationState(7), "");
  EXPECT_EQ(Told<DeleteSlab>(), (std::vector<std::string>{"k0[0,1)w7", "k0[1,2)w7"}));
  EXPECT_EQ(StoreNow(1).deleting_bytes, 2 * kPageBytes);
  for (const LayerRange layers : {kFirst, kSecond}) {
    Deleted(stream, {.key = kKey, .layers = layers, .write = 7});
  }
  EXPECT_EQ(StoreNow(1).occupied_bytes(), 0U);
}

class ArbiterExpiredReservations : public ArbiterTest {
 protected:
  StreamId Expire() {
    const StreamId stream = Serve(1);
    ReserveRow(kKey, 7);
    Announce(stream, {.key = kKey, .layers = kFirst, .write = 7});
    KeepAlive(stream, absl::Seconds(60));
    EXPECT_EQ(ReservationState(7), "EXPIRED");
    EXPECT_EQ(Told<VerifySlab>(), std::vector<std::string>{"k0[0,1)w7"});
    EXPECT_EQ(Told<DeleteSlab>(), std::vector<std::string>{"k0[1,2)w7"});
    return stream;
  }
  const SlabName first_ = FactsOf({.key = kKey, .layers = kFirst, .write = 7}).name;
};

TEST_F(ArbiterExpiredReservations, Rows12And13WhatHasArrivedIsAdoptedWhenItIsSound) {
  const StreamId stream = Expire();
  Apply(SlabVerified{.stream = stream, .name = first_, .sound = true});
  EXPECT_EQ(ReservationState(7), "");
  EXPECT_EQ(States(kKey), "DELETING FRAGMENT");
}

TEST_F(ArbiterExpiredReservations, Row13WhatIsBadOrNotAnsweredForIsDeleted) {
  const StreamId stream = Expire();
  KeepAlive(stream, absl::Milliseconds(59999));
  EXPECT_EQ(ReservationState(7), "EXPIRED");
  KeepAlive(stream, absl::Milliseconds(1));
  EXPECT_EQ(ReservationState(7), "");
  EXPECT_EQ(States(kKey), "DELETING DELETING");
}

TEST_F(ArbiterExpiredReservations, ItsKeyMayBeWrittenAgain) {
  Expire();
  ReserveRow(kKey, 8);
}

TEST_F(ArbiterReservations, Row14ACancelledOneIsDeletedWholly) {
  const StreamId stream = Serve(1);
  ReserveRow(kKey, 7);
  Announce(stream, {.key = kKey, .layers = kFirst, .write = 7});
  Apply(CancelReservation{.ticket = Ticket{50}, .which = IdOf<RequestId>(7)});
  EXPECT_TRUE(Answered<Ended>(Ticket{50})->ended);
  EXPECT_EQ(Told<DeleteSlab>(), (std::vector<std::string>{"k0[0,1)w7", "k0[1,2)w7"}));
  Apply(CancelReservation{.ticket = Ticket{51}, .which = IdOf<RequestId>(7)});
  EXPECT_FALSE(Answered<Ended>(Ticket{51})->ended);
}

TEST_F(ArbiterReservations, Row14ACompleteWriteCannotBeCancelled) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  Apply(CancelReservation{.ticket = Ticket{50}, .which = IdOf<WriteId>(7)});
  EXPECT_FALSE(Answered<Ended>(Ticket{50})->ended);
  EXPECT_EQ(States(kKey), "AVAILABLE");
}

// ---- Room ----

class ArbiterRoom : public ArbiterTest {
 protected:
  // Three rows of ten pages each in a store of forty, oldest first: 7, 8, 9.
  StreamId Fill() {
    const StreamId stream = Serve(1, {}, 40);
    for (const uint32_t write : {7U, 8U, 9U}) {
      now_ += absl::Milliseconds(10);
      WriteRow(stream, 2 * (write - 7), write, 5);
    }
    return stream;
  }
};

TEST_F(ArbiterRoom, NothingGoesAtTheHighWatermarkAndTheOldestAboveIt) {
  Fill();
  ReserveRow(6, 10, 3);  // 36 of 40
  EXPECT_EQ(Told<DeleteSlab>().size(), 0U);
  Reserve one_more = RowRequest(8, 11);
  one_more.room_wait = absl::Seconds(1);
  Apply(one_more);
  EXPECT_EQ(Told<DeleteSlab>(), (std::vector<std::string>{"k0[0,1)w7", "k0[1,2)w7"}));
  EXPECT_NE(Answered<ReservationGrant>(Ticket{11}), nullptr);  // 38 of 40 fit at once
}

TEST_F(ArbiterRoom, FragmentsGoBeforeOlderRowsAndUsedRowsLast) {
  const StreamId stream = Fill();
  Announce(stream, {.key = 6, .layers = kFirst, .write = 20, .pages = 4});
  now_ += absl::Milliseconds(10);
  const RowOpened& oldest = follower_.rows().begin()->second;
  Apply(RowHit{.row = oldest.row, .key = oldest.key});
  Reserve request = RowRequest(8, 11, 4);
  request.room_wait = absl::Seconds(1);
  Apply(request);
  // 42 of 40 wanted: down to 32.
  EXPECT_EQ(Told<DeleteSlab>(), (std::vector<std::string>{"k2[0,1)w8", "k2[1,2)w8", "k6[0,1)w20"}));
}

TEST_F(ArbiterRoom, ALeasedRowIsNeverAVictim) {
  Fill();
  for (const auto& [id, row] : follower_.rows()) {
    Apply(Checkout{.ticket = Ticket{50},
                   .key = row.key,
                   .write_id = row.slabs.front().write_id,
                   .lease = IdOf<LeaseId>(static_cast<uint32_t>(id) + 1)});
    ASSERT_NE(Answered<LeaseGrant>(Ticket{50}), nullptr);
  }
  Apply(RowRequest(8, 11, 6));
  EXPECT_EQ(Refused(11), "RESOURCE_EXHAUSTED NO_ROOM");
  EXPECT_EQ(Told<DeleteSlab>().size(), 0U);
  Apply(EvictRows{.ticket = Ticket{51}});
  EXPECT_EQ(Answered<EvictResult>(Ticket{51})->pinned_count, 3U);
  EXPECT_EQ(Answered<EvictResult>(Ticket{51})->row_count, 0U);
}

TEST_F(ArbiterRoom, AVictimsSlabsGoInEveryStoreThatHasOne) {
  Serve(1, {{.key = kKey, .layers = kFirst, .write = 7, .pages = 9}}, 10);
  Serve(2, {{.key = kKey, .layers = kSecond, .write = 8, .pages = 1}}, 100, Tier::kDisk);
  ASSERT_EQ(States(kKey), "AVAILABLE");
  Reserve request = RowRequest(2, 9);
  request.tier = Tier::kRamFile;
  request.room_wait = absl::Seconds(1);
  Apply(request);
  EXPECT_EQ(Told<DeleteSlab>(), (std::vector<std::string>{"k0[0,1)w7", "k0[1,2)w8"}));
}

TEST_F(ArbiterRoom, QuarantinedBytesLeaveLessRoom) {
  const StreamId stream = Serve(1, {}, 10);
  Apply(StoreHeartbeat{.stream = stream, .quarantined_bytes = 3 * kPageBytes});
  Apply(RowRequest(kKey, 7, 4));
  EXPECT_EQ(Refused(7), "RESOURCE_EXHAUSTED NO_ROOM");
  Apply(RowRequest(kKey, 7, 3));
  EXPECT_NE(Answered<ReservationGrant>(Ticket{7}), nullptr);
}

}  // namespace
}  // namespace kvmesh::meta::testing
