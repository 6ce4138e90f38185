#include "services/shard/core/session_store.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/base/error_info.h"

namespace kvmesh::shard {
namespace {

constexpr MonoTime kStart = absl::Seconds(100);

SessionId Id(uint32_t number) {
  SessionId id;
  id.mutable_data()[0] = static_cast<uint8_t>(number >> 8);
  id.mutable_data()[1] = static_cast<uint8_t>(number);
  return id;
}

StoreLimits Limits() {
  return {.sessions_max = 3, .bytes_max = 1000, .block_tokens = 10, .bytes_per_token = 1};
}

class SessionCacheStoreTest : public ::testing::Test {
 protected:
  absl::Status Open(uint32_t id, uint64_t tokens, MonoTime now, uint64_t epoch = 1,
                    uint64_t attempt = 1) {
    return store_.Open(Id(id), SessionEpoch{epoch}, StreamAttempt{attempt}, tokens, "", now,
                       &admitted_);
  }
  // A session that holds `bytes` of state and is in `phase` since `now`.
  void Put(uint32_t id, uint64_t bytes, SessionPhase phase, MonoTime now) {
    ASSERT_TRUE(Open(id, 10, now).ok());
    SessionEntry* entry = store_.Find(Id(id));
    entry->has_state = true;
    entry->held = 7;
    store_.SetBytes(entry, bytes);
    if (phase != SessionPhase::kLive) store_.Release(Id(id), phase, now);
  }
  bool Holds(uint32_t id) { return store_.Find(Id(id)) != nullptr; }
  uint64_t Evictions(EvictCause cause) const {
    return store_.counters().evictions[static_cast<size_t>(cause)];
  }

  SessionCacheStore store_{Limits()};
  bool admitted_ = false;
};

TEST_F(SessionCacheStoreTest, ReservesWholeBlocksAndTheFixedPart) {
  StoreLimits limits = Limits();
  limits.bytes_per_token = 3;
  limits.bytes_fixed = 5;
  const SessionCacheStore store(limits);
  EXPECT_EQ(store.BytesFor(0), 5u);
  EXPECT_EQ(store.BytesFor(1), 35u);
  EXPECT_EQ(store.BytesFor(10), 35u);
  EXPECT_EQ(store.BytesFor(11), 65u);
}

TEST_F(SessionCacheStoreTest, ASessionThatFillsAnEmptyShardIsAdmittedAndALargerOneRefusedForGood) {
  EXPECT_TRUE(Open(1, 1000, kStart).ok());
  store_.Erase(Id(1));
  const absl::Status refused = Open(2, 1001, kStart);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), reason::kTooLarge);
  EXPECT_FALSE(RetryDelayOf(refused).has_value());
  EXPECT_EQ(store_.counters().too_large, 1u);
  EXPECT_EQ(store_.size(), 0u);
}

TEST_F(SessionCacheStoreTest, LiveReservationsFillTheBytes) {
  ASSERT_TRUE(Open(1, 600, kStart).ok());
  EXPECT_TRUE(Open(2, 400, kStart).ok());
  const absl::Status refused = Open(3, 10, kStart);
  EXPECT_EQ(ReasonOf(refused), reason::kNoRoom);
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  store_.Release(Id(2), SessionPhase::kIdle, kStart);
  EXPECT_TRUE(Open(3, 10, kStart).ok());
}

TEST_F(SessionCacheStoreTest, LiveSessionsFillTheCountAndAreNeverEvicted) {
  for (uint32_t id = 1; id <= 3; ++id) ASSERT_TRUE(Open(id, 10, kStart).ok());
  const absl::Status refused = Open(4, 10, kStart + absl::Hours(1));
  EXPECT_EQ(ReasonOf(refused), reason::kNoRoom);
  for (uint32_t id = 1; id <= 3; ++id) EXPECT_TRUE(Holds(id));
  EXPECT_EQ(store_.counters().no_room, 1u);
}

TEST_F(SessionCacheStoreTest, ManyRefusalsAreSpreadOverLongerDelaysUntilOneIsAdmitted) {
  for (uint32_t id = 1; id <= 3; ++id) ASSERT_TRUE(Open(id, 10, kStart).ok());
  const auto delay = [this] { return RetryDelayOf(Open(9, 10, kStart)); };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(delay(), absl::Milliseconds(250));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(delay(), absl::Milliseconds(500));
  for (int i = 0; i < 1000; ++i) EXPECT_LE(*delay(), absl::Seconds(5));
  EXPECT_EQ(delay(), absl::Seconds(5));
  store_.Erase(Id(1));
  ASSERT_TRUE(Open(4, 10, kStart).ok());
  EXPECT_EQ(delay(), absl::Milliseconds(250));
}

TEST_F(SessionCacheStoreTest, AnOpenOfASessionAlreadyHeldNeedsNoAdmission) {
  Put(1, 10, SessionPhase::kOrphaned, kStart);
  ASSERT_TRUE(Open(2, 990, kStart).ok());
  EXPECT_TRUE(Open(1, 500, kStart, 1, 2).ok());
  EXPECT_FALSE(admitted_);
  EXPECT_EQ(store_.Find(Id(1))->phase, SessionPhase::kLive);
}

TEST_F(SessionCacheStoreTest, OnlyNewerStreamsOfASessionAreAccepted) {
  ASSERT_TRUE(Open(1, 10, kStart, 2, 5).ok());
  EXPECT_EQ(ReasonOf(Open(1, 10, kStart, 2, 5)), reason::kSuperseded);
  EXPECT_EQ(ReasonOf(Open(1, 10, kStart, 2, 4)), reason::kSuperseded);
  EXPECT_EQ(ReasonOf(Open(1, 10, kStart, 1, 6)), reason::kSuperseded);
  EXPECT_TRUE(Open(1, 10, kStart, 2, 6).ok());
}

TEST_F(SessionCacheStoreTest, TheCountEvictsOrphansFirstThenTheLeastRecentlyUsed) {
  Put(1, 10, SessionPhase::kIdle, kStart);
  Put(2, 10, SessionPhase::kOrphaned, kStart + absl::Seconds(1));
  Put(3, 10, SessionPhase::kIdle, kStart + absl::Seconds(2));
  ASSERT_TRUE(Open(4, 10, kStart + absl::Seconds(3)).ok());
  EXPECT_FALSE(Holds(2));
  ASSERT_NE(store_.Touch(Id(1), kStart + absl::Seconds(4)), nullptr);
  ASSERT_TRUE(Open(5, 10, kStart + absl::Seconds(5)).ok());
  EXPECT_TRUE(Holds(1));
  EXPECT_FALSE(Holds(3));
  EXPECT_EQ(Evictions(EvictCause::kLru), 2u);
}

TEST_F(SessionCacheStoreTest, BytesEvictWhatIsNotLive) {
  Put(1, 300, SessionPhase::kIdle, kStart);
  Put(2, 300, SessionPhase::kIdle, kStart);
  ASSERT_TRUE(Open(3, 700, kStart).ok());
  EXPECT_FALSE(Holds(1));
  EXPECT_TRUE(Holds(2));
  store_.SetBytes(store_.Find(Id(3)), 701);  // a live session that outgrew its reservation
  store_.Expire(kStart);
  EXPECT_FALSE(Holds(2));
  EXPECT_TRUE(Holds(3));
  EXPECT_EQ(Evictions(EvictCause::kBytes), 2u);
}

TEST_F(SessionCacheStoreTest, ASessionPastItsTtlIsAMissAndFreesItsBytes) {
  Put(1, 300, SessionPhase::kIdle, kStart);
  EXPECT_NE(store_.Touch(Id(1), kStart + absl::Seconds(599)), nullptr);
  EXPECT_NE(store_.Touch(Id(1), kStart + absl::Seconds(599 + 599)), nullptr);
  EXPECT_EQ(store_.Touch(Id(1), kStart + absl::Seconds(599 + 599 + 600)), nullptr);
  EXPECT_EQ(store_.bytes_used(), 0u);
  EXPECT_EQ(Evictions(EvictCause::kTtl), 1u);
}

TEST_F(SessionCacheStoreTest, AnOrphanIsGoneAfterItsShorterTtl) {
  Put(1, 300, SessionPhase::kOrphaned, kStart);
  store_.Expire(kStart + absl::Seconds(29));
  EXPECT_TRUE(Holds(1));
  store_.Expire(kStart + absl::Seconds(30));
  EXPECT_FALSE(Holds(1));
  EXPECT_EQ(Evictions(EvictCause::kOrphanTtl), 1u);
}

TEST_F(SessionCacheStoreTest, ALiveSessionHasNoTtl) {
  Put(1, 300, SessionPhase::kLive, kStart);
  store_.Expire(kStart + absl::Hours(10));
  EXPECT_TRUE(Holds(1));
}

TEST_F(SessionCacheStoreTest, ANewEntryKnowsWhyTheOldStateIsGone) {
  Put(1, 300, SessionPhase::kOrphaned, kStart);
  store_.Expire(kStart + absl::Minutes(1));
  ASSERT_TRUE(Open(1, 10, kStart + absl::Minutes(1), 1, 2).ok());
  EXPECT_TRUE(admitted_);
  EXPECT_EQ(store_.Find(Id(1))->absent_cause, MissCause::kEvictedOrphan);
}

TEST_F(SessionCacheStoreTest, ADroppedEpochStaysRefusedForAMinuteAndNewerOnesAreWelcome) {
  store_.RememberDropped(Id(1), SessionEpoch{2}, kStart);
  EXPECT_EQ(ReasonOf(Open(1, 10, kStart, 1, 9)), reason::kSuperseded);
  EXPECT_EQ(ReasonOf(Open(1, 10, kStart + absl::Seconds(59), 2, 9)), reason::kSuperseded);
  EXPECT_TRUE(Open(1, 10, kStart, 3, 9).ok());
  store_.Erase(Id(1));
  EXPECT_TRUE(Open(1, 10, kStart + absl::Seconds(60), 2, 9).ok());
}

TEST_F(SessionCacheStoreTest, WhatIsRememberedIsBounded) {
  for (uint32_t i = 0; i < 10000; ++i) {
    store_.RememberDropped(Id(i), SessionEpoch{1}, kStart);
    Put(i + 20000, 1, SessionPhase::kIdle, kStart + absl::Seconds(i));
  }
  EXPECT_LE(store_.remembered(), 2u * 4096);
  EXPECT_FALSE(store_.WasDropped(Id(0), SessionEpoch{1}, kStart));
  EXPECT_TRUE(store_.WasDropped(Id(9999), SessionEpoch{1}, kStart));
}

TEST_F(SessionCacheStoreTest, ListsInOrderOfIdsFromAnyPoint) {
  for (const uint32_t id : {3, 1, 2}) Put(id, id, SessionPhase::kIdle, kStart);
  const auto first = store_.List(std::nullopt, 2, kStart);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[1].id, Id(2));
  const auto rest = store_.List(first[1].id, 2, kStart + absl::Seconds(5));
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].bytes, 3u);
  EXPECT_EQ(rest[0].idle, absl::Seconds(5));
}

TEST_F(SessionCacheStoreTest, BytesUsedIsTheSumOverEntries) {
  Put(1, 10, SessionPhase::kIdle, kStart);
  Put(2, 20, SessionPhase::kLive, kStart);
  EXPECT_EQ(store_.bytes_used(), 30u);
  store_.ForgetState(store_.Find(Id(2)), MissCause::kPoisoned);
  EXPECT_EQ(store_.bytes_used(), 10u);
}

}  // namespace
}  // namespace kvmesh::shard
