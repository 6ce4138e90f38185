// Leases, and callers that wait.
#include "tests/unit/meta/arbiter_fixture.h"

namespace kvmesh::meta::testing {
namespace {

class ArbiterReaders : public ArbiterTest {
 protected:
  ArbiterReaders() : ArbiterReaders(ArbiterLimits()) {}
  explicit ArbiterReaders(const ArbiterLimits& limits) : ArbiterTest(limits) {}

  void TakeLease(uint32_t key, uint32_t write, uint32_t lease, uint64_t ticket) {
    Apply(Checkout{.ticket = Ticket{ticket},
                   .key = KeyOf(key),
                   .write_id = IdOf<WriteId>(write),
                   .lease = IdOf<LeaseId>(lease)});
  }
  void Wait(uint32_t key, uint64_t ticket, absl::Duration wait, uint32_t name_space = 0) {
    Apply(AwaitKey{.ticket = Ticket{ticket},
                   .key_namespace = NamespaceOf(name_space),
                   .key = KeyOf(key),
                   .wait = wait});
  }
  void WaitFragment(uint64_t ticket, absl::Duration appear, absl::Duration upload) {
    AwaitFragment await{.ticket = Ticket{ticket},
                        .key_namespace = NamespaceOf(0),
                        .layers = kFirst,
                        .appear_wait = appear,
                        .upload_wait = upload,
                        .lease = IdOf<LeaseId>(static_cast<uint32_t>(ticket))};
    for (const uint32_t key : {kKey, 2U}) {
      const SlabFacts facts = FactsOf({.key = key});
      await.positions.push_back({facts.name.key, facts.tokens_sha256, facts.token_count});
    }
    Apply(await);
  }
  void ReserveFragment(uint32_t key, uint32_t write, LayerRange layers = kFirst) {
    Reserve fragment = RowRequest(key, write);
    fragment.kind = ReservationKind::kFragment;
    fragment.ranges = {{layers, kPageBytes}};
    Apply(fragment);
    ASSERT_NE(Answered<ReservationGrant>(Ticket{write}), nullptr);
  }
};

TEST_F(ArbiterReaders, ALeaseEndsByCheckinOrAfterThirtySecondsUnlessItIsRenewed) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  TakeLease(kKey, 7, 1, 50);
  ASSERT_NE(Answered<LeaseGrant>(Ticket{50}), nullptr);
  EXPECT_EQ(Answered<LeaseGrant>(Ticket{50})->row.slabs.size(), 2U);
  KeepAlive(stream, absl::Milliseconds(29999));
  Apply(Renew{.ticket = Ticket{51}, .leases = {IdOf<LeaseId>(1), IdOf<LeaseId>(2)}});
  EXPECT_EQ(Answered<RenewResult>(Ticket{51})->unknown_leases,
            std::vector<LeaseId>{IdOf<LeaseId>(2)});
  KeepAlive(stream, absl::Milliseconds(29999));
  EXPECT_EQ(arbiter_.Counts().leases, 1U);
  KeepAlive(stream, absl::Milliseconds(1));
  EXPECT_EQ(arbiter_.Counts().leases, 0U);
  TakeLease(kKey, 7, 3, 52);
  Apply(Checkin{.ticket = Ticket{53}, .lease = IdOf<LeaseId>(3)});
  EXPECT_TRUE(Answered<Ended>(Ticket{53})->ended);
  Apply(Checkin{.ticket = Ticket{54}, .lease = IdOf<LeaseId>(3)});
  EXPECT_FALSE(Answered<Ended>(Ticket{54})->ended);
}

TEST_F(ArbiterReaders, OneLeaseIdIsOneLease) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  WriteRow(stream, 2, 8);
  TakeLease(kKey, 7, 1, 50);
  TakeLease(kKey, 7, 1, 51);
  EXPECT_NE(Answered<LeaseGrant>(Ticket{51}), nullptr);
  EXPECT_EQ(arbiter_.Counts().leases, 1U);
  TakeLease(2, 8, 1, 52);
  EXPECT_EQ(Refused(52), "ALREADY_EXISTS LEASE_ID_IN_USE");
}

// What Lookup asks: the answer to the first was lost, and since then a longer row has come.
TEST_F(ArbiterReaders, ACheckoutThatIsRepeatedForAnotherRowIsAnsweredWithWhatTheLeasePins) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  WriteRow(stream, 2, 8);
  const auto checkout = [&](uint64_t ticket, uint32_t key, uint32_t write) {
    Apply(Checkout{.ticket = Ticket{ticket},
                   .key = KeyOf(key),
                   .write_id = IdOf<WriteId>(write),
                   .lease = IdOf<LeaseId>(1),
                   .or_held = true});
    const auto* grant = Answered<LeaseGrant>(Ticket{ticket});
    return grant == nullptr ? Refused(ticket) : absl::StrCat("k", NumberOf(grant->row.key));
  };
  EXPECT_EQ(checkout(50, kKey, 7), "k0");
  KeepAlive(stream, absl::Seconds(25));
  EXPECT_EQ(checkout(51, 2, 8), "k0");
  EXPECT_EQ(arbiter_.Counts().leases, 1U);
  // It was refreshed.
  KeepAlive(stream, absl::Seconds(25));
  EXPECT_EQ(arbiter_.Counts().leases, 1U);
  // The row that nobody was told of is free to go, the one that is pinned is not.
  Apply(EvictRows{.ticket = Ticket{52}, .keys = {KeyOf(kKey), KeyOf(2)}});
  EXPECT_EQ(States(kKey), "AVAILABLE");
  EXPECT_EQ(States(2), "DELETING");
  Apply(Checkin{.ticket = Ticket{53}, .lease = IdOf<LeaseId>(1)});
  EXPECT_EQ(arbiter_.Counts().leases, 0U);
}

TEST_F(ArbiterReaders, ALeaseOnARowThatCannotBeReadIsNotAnsweredInPlaceOfAnother) {
  const StreamId lost = Serve(1);
  WriteRow(lost, kKey, 7);
  Apply(Checkout{.ticket = Ticket{50},
                 .key = KeyOf(kKey),
                 .write_id = IdOf<WriteId>(7),
                 .lease = IdOf<LeaseId>(1)});
  Apply(StoreGone{.stream = lost});
  WriteRow(Serve(2), 2, 8);
  Apply(Checkout{.ticket = Ticket{51},
                 .key = KeyOf(2),
                 .write_id = IdOf<WriteId>(8),
                 .lease = IdOf<LeaseId>(1),
                 .or_held = true});
  EXPECT_EQ(Refused(51), "ALREADY_EXISTS LEASE_ID_IN_USE");
}

TEST_F(ArbiterReaders, ARowThatWasWrittenAnewIsNotTheOneThatWasLookedUp) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  Apply(EvictRows{.ticket = Ticket{50}});
  for (const LayerRange layers : {kFirst, kSecond}) {
    Deleted(stream, {.key = kKey, .layers = layers, .write = 7});
  }
  WriteRow(stream, kKey, 8);
  TakeLease(kKey, 7, 1, 51);
  EXPECT_EQ(Refused(51), "NOT_FOUND");
  TakeLease(kKey, 8, 1, 52);
  EXPECT_NE(Answered<LeaseGrant>(Ticket{52}), nullptr);
}

TEST_F(ArbiterReaders, ALeaseFollowsItsRowWhenItFallsIntoFragments) {
  const StreamId stream = Serve(1, {}, 10);
  WriteRow(stream, kKey, 7, 3);
  TakeLease(kKey, 7, 1, 50);
  Deleted(stream, {.key = kKey, .layers = kFirst, .write = 7});
  ASSERT_EQ(States(kKey), "FRAGMENT");
  Apply(RowRequest(2, 8, 4));
  EXPECT_EQ(Refused(8), "RESOURCE_EXHAUSTED NO_ROOM");
  Apply(Checkin{.ticket = Ticket{51}, .lease = IdOf<LeaseId>(1)});
  Reserve request = RowRequest(2, 9, 4);
  request.room_wait = absl::Seconds(1);
  Apply(request);
  EXPECT_EQ(Told<DeleteSlab>(), std::vector<std::string>{"k0[1,2)w7"});
}

TEST_F(ArbiterReaders, ABadSlabThatAReaderNamesIsVerifiedAndBelievedOnlyFromItsStore) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  const SlabName bad = FactsOf({.key = kKey, .layers = kFirst, .write = 7}).name;
  Apply(Checkin{.ticket = Ticket{50}, .lease = IdOf<LeaseId>(1), .bad_slabs = {bad}});
  EXPECT_EQ(Told<VerifySlab>(), std::vector<std::string>{"k0[0,1)w7"});
  EXPECT_EQ(States(kKey), "AVAILABLE");
  Apply(SlabVerified{.stream = stream, .name = bad, .sound = true});
  EXPECT_EQ(States(kKey), "AVAILABLE");
  Apply(SlabVerified{.stream = stream, .name = bad, .sound = false});
  EXPECT_EQ(States(kKey), "FRAGMENT");
}

TEST_F(ArbiterReaders, AwaitKeyWaitsOnlyWhileTheKeyIsBeingWritten) {
  const StreamId stream = Serve(1);
  Wait(kKey, 50, absl::Seconds(1));
  EXPECT_EQ(Refused(50), "NOT_FOUND");
  ReserveRow(kKey, 7);
  Wait(kKey, 51, absl::Seconds(1));
  Wait(kKey, 52, absl::Seconds(2));
  EXPECT_EQ(arbiter_.Counts().waiters, 2U);
  After(absl::Milliseconds(999));
  EXPECT_EQ(Refused(51), "");
  After(absl::Milliseconds(1));
  EXPECT_EQ(Refused(51), "DEADLINE_EXCEEDED");
  for (const LayerRange layers : {kFirst, kSecond}) {
    Announce(stream, {.key = kKey, .layers = layers, .write = 7});
  }
  ASSERT_NE(Answered<RowSnapshot>(Ticket{52}), nullptr);
  EXPECT_EQ(Answered<RowSnapshot>(Ticket{52})->write_id(), IdOf<WriteId>(7));
}

TEST_F(ArbiterReaders, AwaitKeyEndsWithTheWriteAndStaysInItsNamespace) {
  const StreamId stream = Serve(1);
  ReserveRow(kKey, 7);
  Wait(kKey, 50, absl::Seconds(9));
  Apply(CancelReservation{.ticket = Ticket{51}, .which = IdOf<WriteId>(7)});
  EXPECT_EQ(Refused(50), "NOT_FOUND");
  WriteRow(stream, 2, 8);
  Wait(2, 52, absl::Seconds(9), 1);
  EXPECT_EQ(Refused(52), "NOT_FOUND");
}

TEST_F(ArbiterReaders, AwaitFragmentTakesTheFirstPositionThatIsThere) {
  const StreamId stream = Serve(1);
  WaitFragment(50, absl::Milliseconds(500), absl::Seconds(10));
  Announce(stream, {.key = 2, .layers = kSecond, .write = 8});  // other layers
  EXPECT_EQ(arbiter_.Counts().waiters, 1U);
  Announce(stream, {.key = 2, .tokenisation = 1, .layers = kFirst, .write = 9});  // other tokens
  EXPECT_EQ(arbiter_.Counts().waiters, 1U);
  Announce(stream, {.key = kKey, .layers = kFirst, .write = 10});
  const auto* grant = Answered<FragmentGrant>(Ticket{50});
  ASSERT_NE(grant, nullptr);
  EXPECT_EQ(grant->position, 0U);
  EXPECT_EQ(arbiter_.Counts().leases, 1U);
}

TEST_F(ArbiterReaders, AwaitFragmentWaitsBrieflyForOneToAppearAndLongerForAnUpload) {
  const StreamId stream = Serve(1);
  WaitFragment(50, absl::Milliseconds(500), absl::Seconds(10));
  After(absl::Milliseconds(500));
  EXPECT_EQ(Refused(50), "NOT_FOUND");
  ReserveFragment(2, 8);
  WaitFragment(51, absl::Milliseconds(500), absl::Seconds(10));
  KeepAlive(stream, absl::Milliseconds(9999));
  EXPECT_EQ(arbiter_.Counts().waiters, 1U);
  KeepAlive(stream, absl::Milliseconds(1));
  EXPECT_EQ(Refused(51), "DEADLINE_EXCEEDED");
  WaitFragment(52, absl::Milliseconds(500), absl::Seconds(10));
  Announce(stream, {.key = 2, .layers = kFirst, .write = 8});
  ASSERT_NE(Answered<FragmentGrant>(Ticket{52}), nullptr);
  EXPECT_EQ(Answered<FragmentGrant>(Ticket{52})->position, 1U);
}

TEST_F(ArbiterReaders, ASlabOfARowServesAsAFragment) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  WaitFragment(50, absl::ZeroDuration(), absl::ZeroDuration());
  EXPECT_NE(Answered<FragmentGrant>(Ticket{50}), nullptr);
}

TEST_F(ArbiterReaders, AnAbandonedWaitIsNotAnswered) {
  Serve(1);
  ReserveRow(kKey, 7);
  Wait(kKey, 50, absl::Seconds(1));
  Apply(Abandon{.ticket = Ticket{50}});
  After(absl::Seconds(1));
  EXPECT_EQ(Refused(50), "");
  EXPECT_EQ(arbiter_.Counts().waiters, 0U);
}

class ArbiterReadersInSmallTables : public ArbiterReaders {
 protected:
  ArbiterReadersInSmallTables()
      : ArbiterReaders({.leases_max = 1, .reservations_max = 1, .waiters_max = 1}) {}
};

TEST_F(ArbiterReadersInSmallTables, WhatDoesNotFitIsRefusedForNow) {
  const StreamId stream = Serve(1);
  WriteRow(stream, kKey, 7);
  TakeLease(kKey, 7, 1, 50);
  EXPECT_NE(Answered<LeaseGrant>(Ticket{50}), nullptr);
  TakeLease(kKey, 7, 2, 51);
  EXPECT_EQ(Refused(51), "RESOURCE_EXHAUSTED TOO_MANY_LEASES");
  EXPECT_TRUE(RetryDelayOf(*Answered<absl::Status>(Ticket{51})).has_value());
  ReserveRow(2, 8);
  Apply(RowRequest(4, 9));
  EXPECT_EQ(Refused(9), "RESOURCE_EXHAUSTED TOO_MANY_RESERVATIONS");
  Wait(2, 52, absl::Seconds(1));
  Wait(2, 53, absl::Seconds(1));
  EXPECT_EQ(Refused(53), "RESOURCE_EXHAUSTED TOO_MANY_WAITERS");
}

}  // namespace
}  // namespace kvmesh::meta::testing
