// What callers of the arbiter see.
#include <set>

#include "common/base/limits.h"
#include "tests/rpc/meta/meta_fixture.h"
#include "tests/testing/bad_text.h"

namespace kvmesh::meta {
namespace {

using ::testing::HasSubstr;
using Stub = v1::MetaService::Stub;

// Messages of lookups are used again.
TEST_F(MetaRpcTest, ALookupSaysNothingOfTheOneBeforeIt) {
  Start();
  FakeStore store({});
  const std::string halves = RowText(1, 5000);
  const std::string whole = RowText(2, 3000);
  store.Put({.key_namespace = kIndexNamespace, .text = whole, .write_id = RandomId<WriteId>()});
  ServeRow(store, halves, {2048});
  EXPECT_TRUE(Lookup(halves, true).has_lease());
  const v1::LookupResponse two = Lookup(halves);
  EXPECT_FALSE(two.has_lease());
  EXPECT_EQ(two.row().slabs_size(), 2);
  const v1::LookupResponse one = Lookup(whole);
  EXPECT_EQ(one.row().slabs_size(), 1);
  EXPECT_EQ(one.row().key(), slab::ContentKey(kIndexNamespace, whole).ToHex());
  EXPECT_EQ(Lookup(RowText(3, 3000)).ByteSizeLong(), 0U);
  EXPECT_EQ(Lookup("").ByteSizeLong(), 0U);
  EXPECT_EQ(Lookup(halves).SerializeAsString(), two.SerializeAsString());
}

TEST_F(MetaRpcTest, WhatAStoreHoldsIsFoundAndPinned) {
  Start();
  const std::string text = RowText(1, 5000);
  FakeStore store({.address = "10.0.0.1:7001", .tier = "disk"});
  ServeRow(store, text, {2048, 3076});
  const v1::LookupResponse inner = Lookup(text.substr(0, 4000) + "?");
  EXPECT_EQ(inner.text_bytes(), 3076U);
  EXPECT_EQ(inner.token_count(), 769U);
  EXPECT_EQ(inner.key(), slab::ContentKey(kIndexNamespace, text.substr(0, 3076)).ToHex());
  EXPECT_EQ(inner.row().key(), slab::ContentKey(kIndexNamespace, text).ToHex());
  EXPECT_EQ(inner.row().token_count(), 1250U);
  ASSERT_EQ(inner.row().slabs_size(), 2);
  EXPECT_EQ(inner.row().slabs(1).address(), "10.0.0.1:7001");
  EXPECT_EQ(inner.row().slabs(1).tier(), "disk");
  EXPECT_EQ(inner.row().slabs(1).slab().layers().begin(), 15U);
  EXPECT_FALSE(inner.has_lease());

  const v1::LookupResponse pinned = Lookup(text, /*checkout=*/true);
  ASSERT_TRUE(pinned.has_lease());
  EXPECT_GT(pinned.lease().ttl().value(), 0U);
  EXPECT_EQ(pinned.row().write_id(), inner.row().write_id());
  v1::CheckinRequest checkin;
  checkin.set_lease_id(pinned.lease().lease_id());
  for (const bool ended : {true, false}) {
    v1::CheckinResponse response;
    ASSERT_TRUE(Do(&Stub::Checkin, checkin, &response).ok());
    EXPECT_EQ(response.ended(), ended);
  }
}

// The answer to the first was lost. Whatever came meanwhile, the repeated call is answered with
// what its lease pins, and there is one lease.
TEST_F(MetaRpcTest, ALookupWithCheckoutThatIsRepeatedHasOneLease) {
  Start();
  FakeStore store({});
  const std::string text = RowText(1, 5000);
  PutRow(store, text.substr(0, 4000), {2048});
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(text, 4000));
  v1::LookupRequest request;
  *request.mutable_namespace_() = Namespace();
  request.set_text(text);
  request.set_checkout(true);
  request.set_lease_id(std::string(RandomId<LeaseId>().bytes()));
  v1::LookupResponse lost;
  ASSERT_TRUE(Do(&Stub::Lookup, request, &lost).ok());
  const auto leases = [&] {
    v1::MetaServiceGetStatsResponse stats;
    EXPECT_TRUE(Do(&Stub::GetStats, v1::MetaServiceGetStatsRequest(), &stats).ok());
    return stats.leases();
  };
  for (const bool longer_came : {false, true}) {
    if (longer_came) {
      PutRow(store, text);
      ASSERT_TRUE(WaitForHit(text, 5000));
    }
    v1::LookupResponse response;
    ASSERT_TRUE(Do(&Stub::Lookup, request, &response).ok());
    EXPECT_EQ(response.text_bytes(), 4000U);
    EXPECT_EQ(response.key(), lost.key());
    EXPECT_EQ(response.row().write_id(), lost.row().write_id());
    EXPECT_EQ(response.lease().lease_id(), request.lease_id());
    EXPECT_EQ(leases(), 1U);
  }
  // It is answered at the cut point that serves the text it is asked for.
  request.set_text(text.substr(0, 3000));
  v1::LookupResponse inner;
  ASSERT_TRUE(Do(&Stub::Lookup, request, &inner).ok());
  EXPECT_EQ(inner.text_bytes(), 2048U);
  EXPECT_EQ(inner.row().key(), lost.row().key());
  // A text that the pinned row is no hit for was never asked for under this id.
  PutRow(store, RowText(2, 5000));
  ASSERT_TRUE(WaitForHit(RowText(2, 5000), 5000));
  request.set_text(RowText(2, 5000));
  EXPECT_EQ(ReasonOf(Do(&Stub::Lookup, request, &inner)), "LEASE_ID_IN_USE");
  v1::CheckinRequest checkin;
  checkin.set_lease_id(request.lease_id());
  v1::CheckinResponse ended;
  ASSERT_TRUE(Do(&Stub::Checkin, checkin, &ended).ok());
  EXPECT_TRUE(ended.ended());
  EXPECT_EQ(leases(), 0U);
}

// Its caller has gone before the answer, and never asks again: the lease lapses.
TEST_F(MetaRpcTest, ALeaseThatNobodyHeardOfLapses) {
  MetaServerOptions options;
  options.loop.arbiter.limits.lease_ttl = absl::Milliseconds(200);
  Start(options);
  FakeStore store({});
  const std::string text = RowText(1, 5000);
  ServeRow(store, text);
  v1::LookupRequest request;
  *request.mutable_namespace_() = Namespace();
  request.set_text(text);
  request.set_checkout(true);
  request.set_lease_id(std::string(RandomId<LeaseId>().bytes()));
  grpc::ClientContext context;
  v1::LookupResponse response;
  grpc::CompletionQueue queue;
  grpc::Status status;
  const auto call = stub_->AsyncLookup(&context, request, &queue);
  call->Finish(&response, &status, nullptr);
  context.TryCancel();
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  v1::MetaServiceGetStatsResponse stats;
  EXPECT_TRUE(WaitUntil([&] {
    return Do(&Stub::GetStats, v1::MetaServiceGetStatsRequest(), &stats).ok() &&
           stats.leases() == 0;
  }));
  v1::EvictRowsRequest evict;
  evict.set_all(true);
  v1::EvictRowsResponse evicted;
  EXPECT_TRUE(WaitUntil(
      [&] { return Do(&Stub::EvictRows, evict, &evicted).ok() && evicted.row_count() == 1; }));
}

TEST_F(MetaRpcTest, ACancelledWriteIsDeletedWhenItArrives) {
  Start();
  FakeStore store({});
  ASSERT_TRUE(store.Attach(channel_).ok());
  const std::string text = RowText(1, 5000);
  v1::ReserveResponse reserved;
  ASSERT_TRUE(WaitUntil([&] { return Do(&Stub::Reserve, ReserveOf(text), &reserved).ok(); }));
  v1::CancelReservationRequest cancel;
  cancel.set_write_id(reserved.write_id());
  v1::CancelReservationResponse cancelled;
  ASSERT_TRUE(Do(&Stub::CancelReservation, cancel, &cancelled).ok());
  EXPECT_TRUE(cancelled.cancelled());
  for (const FakeSlab& slab : Halves(text, WriteId::FromBytes(reserved.write_id(), "id").value())) {
    store.Put(slab);
  }
  EXPECT_TRUE(WaitUntil([&] { return store.slabs() == 0; }));
  EXPECT_EQ(HitBytes(text), 0U);
}

TEST_F(MetaRpcTest, AWriteThatWouldPassItsNamespacesQuotaIsRefusedAndTheOldestMakesRoom) {
  Start();
  FakeStore store({});
  ASSERT_TRUE(store.Attach(channel_).ok());
  const auto limited = [](const std::string& text, uint64_t mib) {
    v1::ReserveRequest request = ReserveOf(text);
    request.set_namespace_bytes_max(mib << 20);
    return request;
  };
  v1::ReserveResponse reserved;
  const std::string first = RowText(1, 5000);
  ASSERT_TRUE(WaitUntil([&] { return Do(&Stub::Reserve, limited(first, 3), &reserved).ok(); }));
  for (const FakeSlab& slab :
       Halves(first, WriteId::FromBytes(reserved.write_id(), "id").value())) {
    store.Put(slab);
  }
  ASSERT_TRUE(WaitForHit(first, 5000));
  // Two of 2 MiB are more than 3.
  const absl::Status refused = Do(&Stub::Reserve, limited(RowText(2, 5000), 3), &reserved);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(ReasonOf(refused), "QUOTA");
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_TRUE(WaitUntil([&] { return HitBytes(first) == 0; }));
  EXPECT_TRUE(
      WaitUntil([&] { return Do(&Stub::Reserve, limited(RowText(2, 5000), 3), &reserved).ok(); }));
  // One that could never fit.
  const absl::Status too_large = Do(&Stub::Reserve, limited(RowText(3, 5000), 1), &reserved);
  EXPECT_EQ(ReasonOf(too_large), "QUOTA");
  EXPECT_FALSE(RetryDelayOf(too_large).has_value());
}

TEST_F(MetaRpcTest, ATextOfEightMiBIsTakenAndOneByteMoreIsNot) {
  Start();
  v1::LookupRequest request;
  *request.mutable_namespace_() = Namespace();
  v1::LookupResponse response;
  *request.mutable_text() = RowText(1, limits::kTextBytesMax);
  EXPECT_TRUE(Do(&Stub::Lookup, request, &response).ok());
  request.mutable_text()->push_back('x');
  const absl::Status refused = Do(&Stub::Lookup, request, &response);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("text has 8388609 bytes, at most 8388608"));
  request.mutable_text()->resize(limits::kMessageBytesMax);
  EXPECT_TRUE(absl::IsResourceExhausted(Do(&Stub::Lookup, request, &response)));
}

TEST_F(MetaRpcTest, AGibibyteOfPromptsThatShareEverythingIsBoundedWork) {
  Start();
  FakeStore store({});
  // A thousand lengths behind one block hash, all prefixes of what is asked for.
  const std::string text = RowText(1, limits::kTextBytesMax);
  for (uint32_t bytes = 1024; bytes < 2048; ++bytes) {
    store.Put({.key_namespace = kIndexNamespace,
               .text = text.substr(0, bytes),
               .write_id = RandomId<WriteId>(),
               .size_bytes = 4096});
  }
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(text.substr(0, 3000), 2047));
  v1::LookupRequest request;
  *request.mutable_namespace_() = Namespace();
  request.set_text(text);
  const auto start = clock_.Now();
  for (int i = 0; i < 128; ++i) {
    v1::LookupResponse response;
    ASSERT_TRUE(Do(&Stub::Lookup, request, &response).ok());
    ASSERT_EQ(response.text_bytes(), 2047U);
  }
  // 128 × 8 MiB; hashing it takes about a second.
  EXPECT_LT(clock_.Now() - start, absl::Seconds(60));
}

TEST_F(MetaRpcTest, LimitsOfALookupShortenIt) {
  Start();
  FakeStore store({});
  const std::string text = RowText(1, 5000);
  ServeRow(store, text, {2048, 3076});
  v1::LookupRequest request;
  *request.mutable_namespace_() = Namespace();
  request.set_text(text);
  for (const auto& [bytes_max, expected] :
       {std::pair(5000, 5000), std::pair(4999, 3076), std::pair(3075, 2048), std::pair(2047, 0)}) {
    request.set_text_bytes_max(static_cast<uint64_t>(bytes_max));
    v1::LookupResponse response;
    ASSERT_TRUE(Do(&Stub::Lookup, request, &response).ok());
    EXPECT_EQ(response.text_bytes(), static_cast<uint64_t>(expected)) << bytes_max;
  }
  request.set_text_bytes_max(3076);
  for (const uint32_t tokens : {769U, 770U}) {
    request.set_token_count_min(tokens);
    v1::LookupResponse response;
    ASSERT_TRUE(Do(&Stub::Lookup, request, &response).ok());
    EXPECT_EQ(response.found(), tokens == 769);
  }
}

TEST_F(MetaRpcTest, MalformedRequestsAreRefusedByTheNameOfTheField) {
  Start();
  const auto refused = [&](auto method, const auto& request, auto response, const char* says) {
    const absl::Status status = Do(method, request, &response);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  };
  v1::LookupRequest lookup;
  refused(&Stub::Lookup, lookup, v1::LookupResponse(), "namespace.model_fp has 0 bytes; 32");
  *lookup.mutable_namespace_() = Namespace();
  lookup.mutable_namespace_()->set_quant("");
  refused(&Stub::Lookup, lookup, v1::LookupResponse(), "namespace.quant has 0 bytes");
  *lookup.mutable_namespace_() = Namespace();
  lookup.set_checkout(true);
  lookup.set_lease_id("short");
  refused(&Stub::Lookup, lookup, v1::LookupResponse(), "lease_id");

  v1::CheckoutRequest checkout;
  checkout.set_key("xyz");
  refused(&Stub::Checkout, checkout, v1::CheckoutResponse(), "key has 3 characters; 64 hex digits");

  v1::RenewRequest renew;
  for (int i = 0; i <= kRenewedIdsMax; ++i) renew.add_lease_ids(std::string(16, 'x'));
  refused(&Stub::Renew, renew, v1::RenewResponse(), "has 257 entries; 0 to 256");

  v1::ReserveRequest reserve = ReserveOf("text");
  reserve.set_kind(v1::RESERVATION_KIND_UNSPECIFIED);
  refused(&Stub::Reserve, reserve, v1::ReserveResponse(), "kind is 0");
  reserve = ReserveOf("text");
  reserve.set_model_layers(29);
  refused(&Stub::Reserve, reserve, v1::ReserveResponse(), "15:30; model_layers is 29");
  reserve = ReserveOf("text");
  reserve.mutable_ranges(0)->set_size_bytes(0);
  refused(&Stub::Reserve, reserve, v1::ReserveResponse(), "ranges.size_bytes is 0");
  reserve = ReserveOf("text");
  reserve.mutable_ranges(1)->mutable_layers()->set_begin(16);
  refused(&Stub::Reserve, reserve, v1::ReserveResponse(), "");
  reserve = ReserveOf("text");
  reserve.set_kind(v1::RESERVATION_KIND_FRAGMENT);
  refused(&Stub::Reserve, reserve, v1::ReserveResponse(), "ranges has 2 entries; 1 to 1");
  reserve = ReserveOf("text");
  reserve.set_tier("tape");
  refused(&Stub::Reserve, reserve, v1::ReserveResponse(), "tier");
  reserve = ReserveOf("text");
  reserve.mutable_room_wait()->set_value(10'001);
  refused(&Stub::Reserve, reserve, v1::ReserveResponse(), "room_wait is 10001 ms, at most 10000");

  v1::CancelReservationRequest cancel;
  refused(&Stub::CancelReservation, cancel, v1::CancelReservationResponse(), "exactly one");
  v1::AwaitFragmentRequest fragment;
  *fragment.mutable_namespace_() = Namespace();
  fragment.mutable_layers()->set_end(1);
  refused(&Stub::AwaitFragment, fragment, v1::AwaitFragmentResponse(),
          "positions has 0 entries; 1 to 8");
  v1::EvictRowsRequest evict;
  refused(&Stub::EvictRows, evict, v1::EvictRowsResponse(), "0 selectors");
  v1::ListRowsRequest rows;
  rows.set_page_size(1001);
  refused(&Stub::ListRows, rows, v1::ListRowsResponse(), "page_size is 1001, at most 1000");
  v1::ListReservationsRequest reservations;
  reservations.set_page_token("x");
  refused(&Stub::ListReservations, reservations, v1::ListReservationsResponse(), "page_token");
}

TEST_F(MetaRpcTest, RequestsThatAreNotUtf8NameTheirField) {
  Start();
  testing::ExpectBadTextIsRefused(channel_, "kvmesh.v1.MetaService");
}

TEST_F(MetaRpcTest, RowsReservationsAndStoresAreListed) {
  Start();
  FakeStore store({.address = "10.0.0.9:1", .tier = "ram"});
  for (uint64_t seed = 1; seed <= 7; ++seed) PutRow(store, RowText(seed, 3000));
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(RowText(7, 3000), 3000));
  std::set<std::string> keys;
  v1::ListRowsRequest request;
  request.set_page_size(3);
  int pages = 0;
  do {
    v1::ListRowsResponse response;
    ASSERT_TRUE(Do(&Stub::ListRows, request, &response).ok());
    for (const v1::RowSummary& row : response.rows()) {
      keys.insert(row.row().key());
      EXPECT_EQ(row.state(), ToString(RowState::kAvailable));
      EXPECT_EQ(row.namespace_().quant(), kIndexNamespace.quant);
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty() && ++pages < 10);
  EXPECT_EQ(keys.size(), 7U);

  v1::ReserveResponse reserved;
  const v1::ReserveRequest reserve = ReserveOf("text");
  ASSERT_TRUE(Do(&Stub::Reserve, reserve, &reserved).ok());
  v1::ListReservationsResponse reservations;
  ASSERT_TRUE(Do(&Stub::ListReservations, v1::ListReservationsRequest(), &reservations).ok());
  ASSERT_EQ(reservations.reservations_size(), 1);
  EXPECT_EQ(reservations.reservations(0).key(), reserve.key());
  EXPECT_EQ(reservations.reservations(0).reason(), v1::SAVE_REASON_CONTINUED);

  v1::MetaServiceGetStatsResponse stats;
  ASSERT_TRUE(Do(&Stub::GetStats, v1::MetaServiceGetStatsRequest(), &stats).ok());
  ASSERT_EQ(stats.stores_size(), 1);
  EXPECT_EQ(stats.stores(0).address(), "10.0.0.9:1");
  EXPECT_EQ(stats.stores(0).live_bytes(), 14U << 20);
  EXPECT_EQ(stats.rows(), 7U);
  EXPECT_EQ(stats.reservations(), 1U);
  EXPECT_TRUE(WaitUntil([&] {
    return meta_->metrics().Value("kvmesh_meta_rows") == 7 &&
           meta_->metrics().Value("kvmesh_meta_store_bytes", {{"tier", "ram"}, {"what", "live"}}) ==
               14 << 20;
  }));
  EXPECT_GT(meta_->metrics().Value("kvmesh_meta_lookups_total", {{"outcome", "hit"}}), 0);
}

}  // namespace
}  // namespace kvmesh::meta
