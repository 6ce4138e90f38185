// What callers of the arbiter see.
#include <future>
#include <set>
#include <thread>

#include "common/base/limits.h"
#include "tests/rpc/meta/meta_fixture.h"
#include "tests/testing/bad_text.h"

namespace kvmesh::meta {
namespace {

using ::testing::HasSubstr;
using Stub = v1::MetaService::Stub;

TEST_F(MetaRpcTest, WhatAStoreHoldsIsFoundAndPinned) {
  Start();
  const std::string text = RowText(1, 5000);
  FakeStore store({.address = "10.0.0.1:7001", .tier = "disk"});
  PutRow(store, text, {2048, 3076});
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(text, 5000));
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

TEST_F(MetaRpcTest, AWriteGoesFromReserveToARowAndWakesWhoWaits) {
  Start();
  FakeStore store({.address = "10.0.0.1:7001"});
  ASSERT_TRUE(store.Attach(channel_).ok());
  const std::string text = RowText(1, 5000);
  const v1::ReserveRequest reserve = ReserveOf(text);
  v1::ReserveResponse reserved;
  ASSERT_TRUE(WaitUntil([&] { return Do(&Stub::Reserve, reserve, &reserved).ok(); }));
  ASSERT_EQ(reserved.ranges_size(), 2);
  EXPECT_EQ(reserved.ranges(0).address(), "10.0.0.1:7001");
  v1::ReserveResponse again;
  ASSERT_TRUE(Do(&Stub::Reserve, reserve, &again).ok());  // the same request
  EXPECT_EQ(again.write_id(), reserved.write_id());
  EXPECT_EQ(ReasonOf(Do(&Stub::Reserve, ReserveOf(text), &again)), "BEING_WRITTEN");

  v1::AwaitKeyRequest await;
  *await.mutable_namespace_() = Namespace();
  await.set_key(reserve.key());
  await.mutable_wait()->set_value(60'000);
  v1::AwaitKeyResponse row;
  std::future<absl::Status> waiting =
      std::async(std::launch::async, [&] { return Do(&Stub::AwaitKey, await, &row); });
  const auto halves = Halves(text, WriteId::FromBytes(reserved.write_id(), "id").value(), {2048});
  store.Put(halves[0]);
  EXPECT_EQ(HitBytes(text), 0U);
  store.Put(halves[1]);
  ASSERT_TRUE(waiting.get().ok());
  EXPECT_EQ(row.row().slabs_size(), 2);
  EXPECT_EQ(HitBytes(text), 5000U);
  EXPECT_TRUE(absl::IsAlreadyExists(Do(&Stub::Reserve, ReserveOf(text), &again)));
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
  PutRow(store, text, {2048, 3076});
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(text, 5000));
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

TEST_F(MetaRpcTest, WhoWaitsIsAnsweredWhenTheServerDrains) {
  Start();
  FakeStore store({});
  ASSERT_TRUE(store.Attach(channel_).ok());
  const v1::ReserveRequest reserve = ReserveOf("text");
  v1::ReserveResponse reserved;
  ASSERT_TRUE(WaitUntil([&] { return Do(&Stub::Reserve, reserve, &reserved).ok(); }));
  v1::AwaitKeyRequest await;
  *await.mutable_namespace_() = Namespace();
  await.set_key(reserve.key());
  await.mutable_wait()->set_value(60'000);
  std::future<absl::Status> waiting = std::async(std::launch::async, [&] {
    v1::AwaitKeyResponse row;
    return Do(&Stub::AwaitKey, await, &row);
  });
  v1::MetaServiceGetStatsResponse stats;
  ASSERT_TRUE(WaitUntil([&] {
    return Do(&Stub::GetStats, v1::MetaServiceGetStatsRequest(), &stats).ok() &&
           stats.waiters() == 1;
  }));
  meta_->Shutdown(absl::Seconds(30));
  EXPECT_TRUE(absl::IsUnavailable(waiting.get()));
  EXPECT_TRUE(WaitUntil([&] { return store.ended().has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*store.ended())) << *store.ended();
}

TEST_F(MetaRpcTest, ACallerThatGoesIsWaitedForNoMore) {
  Start();
  FakeStore store({});
  ASSERT_TRUE(store.Attach(channel_).ok());
  const v1::ReserveRequest reserve = ReserveOf("text");
  v1::ReserveResponse reserved;
  ASSERT_TRUE(WaitUntil([&] { return Do(&Stub::Reserve, reserve, &reserved).ok(); }));
  v1::AwaitKeyRequest await;
  *await.mutable_namespace_() = Namespace();
  await.set_key(reserve.key());
  await.mutable_wait()->set_value(60'000);
  grpc::ClientContext context;
  std::future<grpc::Status> waiting = std::async(std::launch::async, [&] {
    v1::AwaitKeyResponse row;
    return stub_->AwaitKey(&context, await, &row);
  });
  v1::MetaServiceGetStatsResponse stats;
  const auto waiters = [&](uint64_t count) {
    return WaitUntil([&] {
      return Do(&Stub::GetStats, v1::MetaServiceGetStatsRequest(), &stats).ok() &&
             stats.waiters() == count;
    });
  };
  ASSERT_TRUE(waiters(1));
  context.TryCancel();
  EXPECT_EQ(waiting.get().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(waiters(0));
}

TEST_F(MetaRpcTest, ExplanationsNameTheFirstByteThatDiffers) {
  Start();
  FakeStore store({});
  const std::string text = RowText(1, 5000);
  PutRow(store, text, {2048});
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(text, 5000));
  for (const uint64_t at : {4321U, 300U}) {
    v1::ExplainLookupRequest request;
    *request.mutable_namespace_() = Namespace();
    request.set_text(text + "tail");
    (*request.mutable_text())[at] = '#';
    v1::ExplainLookupResponse response;
    ASSERT_TRUE(Do(&Stub::ExplainLookup, request, &response).ok());
    EXPECT_EQ(response.lookup().text_bytes(), at > 2048 ? 2048U : 0U);
    EXPECT_EQ(response.nearest().key(), slab::ContentKey(kIndexNamespace, text).ToHex());
    EXPECT_EQ(response.common_bytes(), at);
    ASSERT_TRUE(response.has_difference());
    EXPECT_EQ(response.difference().offset(), at);
    EXPECT_THAT(response.difference().prompt(), HasSubstr(text.substr(at - 20, 20) + "#"));
    EXPECT_THAT(response.difference().row(), HasSubstr(text.substr(at - 20, 24)));
  }
}

TEST_F(MetaRpcTest, ExplanationsDoWithoutAStoreThatGivesNoText) {
  Start();
  FakeStore store({.answers_texts = false});
  const std::string text = RowText(1, 5000);
  PutRow(store, text, {4200});
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(text, 5000));
  v1::ExplainLookupRequest request;
  *request.mutable_namespace_() = Namespace();
  request.set_text(text.substr(0, 4150) + "#");
  v1::ExplainLookupResponse response;
  ASSERT_TRUE(Do(&Stub::ExplainLookup, request, &response).ok());
  EXPECT_FALSE(response.has_difference());
  EXPECT_EQ(response.nearest().key(), slab::ContentKey(kIndexNamespace, text).ToHex());
  EXPECT_EQ(response.common_bytes(), 4096U);
}

TEST_F(MetaRpcTest, ExplanationsNameTheFieldThatDiffersAndWhatWasEvicted) {
  Start();
  FakeStore store({});
  const std::string text = RowText(1, 5000);
  PutRow(store, text);
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(text, 5000));
  slab::KeyNamespace other = kIndexNamespace;
  other.quant = "f16/f16";
  other.ctx_params[5] ^= 1;
  v1::ExplainLookupRequest request;
  *request.mutable_namespace_() = Namespace(other);
  request.set_text(text);
  v1::ExplainLookupResponse response;
  ASSERT_TRUE(Do(&Stub::ExplainLookup, request, &response).ok());
  EXPECT_FALSE(response.lookup().found());
  EXPECT_THAT(response.namespace_fields_that_differ(),
              ::testing::ElementsAre("quant", "ctx_params"));

  v1::EvictRowsRequest evict;
  evict.set_all(true);
  v1::EvictRowsResponse evicted;
  ASSERT_TRUE(Do(&Stub::EvictRows, evict, &evicted).ok());
  EXPECT_EQ(evicted.row_count(), 1U);
  *request.mutable_namespace_() = Namespace();
  request.set_text(text + "more");
  response.Clear();
  ASSERT_TRUE(Do(&Stub::ExplainLookup, request, &response).ok());
  EXPECT_FALSE(response.lookup().found());
  ASSERT_TRUE(response.has_gone());
  EXPECT_EQ(response.gone().cause(), ToString(GoneCause::kOperator));
  EXPECT_EQ(response.gone().text_bytes(), 5000U);
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

// Loops of their own: their queues can be filled.
TEST(ArbiterLoop, AFullQueueRefusesWithARetryDelayAndTakesFramesOfStoresStill) {
  metrics::Metrics metrics("meta");
  MetaMetrics meta_metrics(metrics);
  ReadIndex index;
  const MonotonicClock clock;
  std::promise<void> running;
  std::promise<void> go;
  std::vector<absl::Status> answers;
  {
    ArbiterLoop loop({.queue_max = 2}, clock, meta_metrics, index);
    ASSERT_TRUE(loop.Ask([&](const ArbiterLoop::View&) {
                      running.set_value();
                      go.get_future().wait_for(std::chrono::seconds(60));
                    })
                    .ok());
    running.get_future().wait_for(std::chrono::seconds(60));
    const auto ask = [&] {
      loop.Ask(Checkout{}, [&](const Answer& answer, const Incarnation&) {
        answers.push_back(std::get<absl::Status>(answer));
      });
    };
    for (int i = 0; i < 3; ++i) ask();
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_EQ(ReasonOf(answers[0]), reason::kQueueFull);
    EXPECT_TRUE(RetryDelayOf(answers[0]).has_value());
    EXPECT_TRUE(absl::IsResourceExhausted(loop.Ask([](const ArbiterLoop::View&) {})));
    loop.StreamEnded(StreamId{7});
    go.set_value();
  }
  // The others were answered by the arbiter, or by the end of the loop.
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_FALSE(answers[2].ok());
}

}  // namespace
}  // namespace kvmesh::meta
