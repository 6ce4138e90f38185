#include "services/meta/grpc/meta_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "services/meta/grpc/asking_call.h"
#include "services/meta/grpc/explain.h"
#include "services/meta/grpc/lookup_call.h"
#include "services/meta/grpc/meta_codec.h"
#include "services/meta/grpc/store_stream.h"

namespace kvmesh::meta {
namespace {

// Each goes through all rows.
constexpr int kExplanationsMax = 4;
// Messages of lookups that are kept: together less than 16 MiB.
constexpr size_t kIdleLookupsMax = 128;
constexpr size_t kIdleLookupBytesMax = 128 << 10;

// A call that a query of the arbiter answers: `query(view)` fills the response.
template <typename Query>
grpc::ServerUnaryReactor* EndWithQuery(Call* call, ArbiterLoop& loop, const Query& query) {
  const absl::Status asked = loop.Ask([call, query](const ArbiterLoop::View& view) {
    query(view);
    call->End(absl::OkStatus());
  });
  if (!asked.ok()) call->End(asked);
  return call;
}

}  // namespace

MetaService::MetaService(ArbiterLoop& loop, const ReadIndex& index, MetaMetrics& metrics,
                         const Clock& clock, const Limits& limits)
    : CheckedService(metrics.metrics(), clock),
      loop_(loop),
      index_(index),
      metrics_(metrics),
      clock_(clock),
      limits_(limits),
      lookups_(kIdleLookupsMax, kIdleLookupBytesMax) {
  CheckUnary("Lookup", &MetaService::Lookup, &lookups_);
  CheckUnary("Checkout", &MetaService::Checkout);
  CheckUnary("Renew", &MetaService::Renew);
  CheckUnary("Checkin", &MetaService::Checkin);
  CheckUnary("Reserve", &MetaService::Reserve);
  CheckUnary("CancelReservation", &MetaService::CancelReservation);
  CheckUnary("AwaitKey", &MetaService::AwaitKey);
  CheckUnary("AwaitFragment", &MetaService::AwaitFragment);
  CheckUnary("ExplainLookup", &MetaService::ExplainLookup);
  CheckUnary("ListRows", &MetaService::ListRows);
  CheckUnary("ListReservations", &MetaService::ListReservations);
  CheckUnary("EvictRows", &MetaService::EvictRows);
  CheckUnary("GetStats", &MetaService::GetStats);
  TakeParsedStream<v1::AttachStoreRequest, v1::AttachStoreResponse>(
      "AttachStore",
      [this](grpc::CallbackServerContext*) { return NewStoreStream(loop_, metrics_, clock_); });
}

grpc::ServerUnaryReactor* MetaService::Lookup(grpc::CallbackServerContext* /*call*/,
                                              const v1::LookupRequest* request,
                                              v1::LookupResponse* response) {
  return NewLookupCall(loop_, index_, metrics_, clock_, *request, response);
}

grpc::ServerUnaryReactor* MetaService::Checkout(grpc::CallbackServerContext* /*call*/,
                                                const v1::CheckoutRequest* request,
                                                v1::CheckoutResponse* response) {
  return (new AskingCall<LeaseGrant>(metrics_, clock_, "Checkout"))
      ->Ask(loop_, DecodeCheckout(*request),
            [response](const LeaseGrant& grant, const Incarnation& incarnation) {
              *response->mutable_lease() = EncodeLease(grant.lease, grant.ttl, incarnation);
              *response->mutable_row() = EncodeRow(grant.row);
            });
}

grpc::ServerUnaryReactor* MetaService::Renew(grpc::CallbackServerContext* /*call*/,
                                             const v1::RenewRequest* request,
                                             v1::RenewResponse* response) {
  return (new AskingCall<RenewResult>(metrics_, clock_, "Renew"))
      ->Ask(loop_, DecodeRenew(*request),
            [this, response](const RenewResult& result, const Incarnation&) {
              SetMillis(limits_.lease_ttl, response->mutable_lease_ttl());
              SetMillis(limits_.reservation_ttl, response->mutable_reservation_ttl());
              for (const LeaseId& lease : result.unknown_leases) {
                response->add_unknown_lease_ids(std::string(lease.bytes()));
              }
              for (const WriteId& write : result.unknown_writes) {
                response->add_unknown_write_ids(std::string(write.bytes()));
              }
            });
}

grpc::ServerUnaryReactor* MetaService::Checkin(grpc::CallbackServerContext* /*call*/,
                                               const v1::CheckinRequest* request,
                                               v1::CheckinResponse* response) {
  return (new AskingCall<Ended>(metrics_, clock_, "Checkin"))
      ->Ask(loop_, DecodeCheckin(*request), [response](const Ended& ended, const Incarnation&) {
        response->set_ended(ended.ended);
      });
}

grpc::ServerUnaryReactor* MetaService::Reserve(grpc::CallbackServerContext* /*call*/,
                                               const v1::ReserveRequest* request,
                                               v1::ReserveResponse* response) {
  return (new AskingCall<ReservationGrant>(metrics_, clock_, "Reserve"))
      ->Ask(loop_, DecodeReserve(*request),
            [response](const ReservationGrant& grant, const Incarnation& incarnation) {
              response->set_write_id(std::string(grant.write_id.bytes()));
              for (const ReservedRange& range : grant.ranges) {
                *response->add_ranges() = EncodeRange(range);
              }
              SetMillis(grant.ttl, response->mutable_ttl());
              *response->mutable_incarnation() = EncodeIncarnation(incarnation);
            });
}

grpc::ServerUnaryReactor* MetaService::CancelReservation(
    grpc::CallbackServerContext* /*call*/, const v1::CancelReservationRequest* request,
    v1::CancelReservationResponse* response) {
  return (new AskingCall<Ended>(metrics_, clock_, "CancelReservation"))
      ->Ask(loop_, DecodeCancel(*request), [response](const Ended& ended, const Incarnation&) {
        response->set_cancelled(ended.ended);
      });
}

grpc::ServerUnaryReactor* MetaService::AwaitKey(grpc::CallbackServerContext* /*call*/,
                                                const v1::AwaitKeyRequest* request,
                                                v1::AwaitKeyResponse* response) {
  return (new AskingCall<RowSnapshot>(metrics_, clock_, "AwaitKey"))
      ->Ask(loop_, DecodeAwaitKey(*request),
            [response](const RowSnapshot& row, const Incarnation&) {
              *response->mutable_row() = EncodeRow(row);
            });
}

grpc::ServerUnaryReactor* MetaService::AwaitFragment(grpc::CallbackServerContext* /*call*/,
                                                     const v1::AwaitFragmentRequest* request,
                                                     v1::AwaitFragmentResponse* response) {
  return (new AskingCall<FragmentGrant>(metrics_, clock_, "AwaitFragment"))
      ->Ask(loop_, DecodeAwaitFragment(*request),
            [response](const FragmentGrant& grant, const Incarnation& incarnation) {
              *response->mutable_lease() = EncodeLease(grant.lease, grant.ttl, incarnation);
              response->set_position(static_cast<uint32_t>(grant.position));
              *response->mutable_slab() = EncodePlace(grant.slab);
            });
}

grpc::ServerUnaryReactor* MetaService::ExplainLookup(grpc::CallbackServerContext* /*call*/,
                                                     const v1::ExplainLookupRequest* request,
                                                     v1::ExplainLookupResponse* response) {
  auto* call = new Call(metrics_, clock_, "ExplainLookup");
  if (explanations_.fetch_add(1) >= kExplanationsMax) {
    explanations_.fetch_sub(1);
    call->End(BusyStatus(absl::StrCat(kExplanationsMax, " explanations are under way")));
    return call;
  }
  absl::StatusOr<slab::KeyNamespace> key_namespace = DecodeNamespace(request->namespace_());
  const absl::Status checked = CheckText(request->text());
  if (!key_namespace.ok() || !checked.ok()) {
    explanations_.fetch_sub(1);
    call->End(checked.ok() ? key_namespace.status() : checked);
    return call;
  }
  Explain(loop_, index_, clock_.Now(), *std::move(key_namespace), request->text(), response,
          [this, call](const absl::Status& status) {
            explanations_.fetch_sub(1);
            call->End(status);
          });
  return call;
}

grpc::ServerUnaryReactor* MetaService::ListRows(grpc::CallbackServerContext* /*call*/,
                                                const v1::ListRowsRequest* request,
                                                v1::ListRowsResponse* response) {
  auto* call = new Call(metrics_, clock_, "ListRows");
  const absl::StatusOr<Page> page = DecodePage(request->page_size(), request->page_token());
  absl::StatusOr<Sha256Digest> key = Sha256Digest();
  if (!request->key().empty()) key = Sha256Digest::FromHex(request->key(), "key");
  if (!page.ok() || !key.ok()) {
    call->End(page.ok() ? key.status() : page.status());
    return call;
  }
  RowFilter filter{.rows_only = !request->fragments()};
  if (!request->key().empty()) filter.key = *key;
  return EndWithQuery(call, loop_, [page = *page, filter, response](const ArbiterLoop::View& view) {
    std::optional<RowId> after;
    if (page.after) after = RowId{static_cast<uint32_t>(*page.after)};
    const std::vector<RowSnapshot> rows = view.arbiter.ListRows(after, page.size, filter, view.now);
    for (const RowSnapshot& row : rows) *response->add_rows() = EncodeSummary(row);
    if (rows.size() == page.size) {
      response->set_next_page_token(EncodePageToken(static_cast<uint32_t>(rows.back().id)));
    }
  });
}

grpc::ServerUnaryReactor* MetaService::ListReservations(grpc::CallbackServerContext* /*call*/,
                                                        const v1::ListReservationsRequest* request,
                                                        v1::ListReservationsResponse* response) {
  auto* call = new Call(metrics_, clock_, "ListReservations");
  const absl::StatusOr<Page> page = DecodePage(request->page_size(), request->page_token());
  if (!page.ok()) {
    call->End(page.status());
    return call;
  }
  return EndWithQuery(call, loop_, [page = *page, response](const ArbiterLoop::View& view) {
    const std::vector<ReservationSnapshot> found =
        view.arbiter.ListReservations(page.after.value_or(0), page.size, view.now);
    for (const ReservationSnapshot& reservation : found) {
      *response->add_reservations() = EncodeReservation(reservation);
    }
    if (found.size() == page.size) {
      response->set_next_page_token(EncodePageToken(found.back().serial));
    }
  });
}

grpc::ServerUnaryReactor* MetaService::EvictRows(grpc::CallbackServerContext* /*call*/,
                                                 const v1::EvictRowsRequest* request,
                                                 v1::EvictRowsResponse* response) {
  return (new AskingCall<EvictResult>(metrics_, clock_, "EvictRows"))
      ->Ask(loop_, DecodeEvictRows(*request),
            [response](const EvictResult& result, const Incarnation&) {
              for (const RowSnapshot& row : result.rows) *response->add_rows() = EncodeRow(row);
              response->set_row_count(result.row_count);
              response->set_size_bytes(result.size_bytes);
              response->set_pinned_count(result.pinned_count);
            });
}

grpc::ServerUnaryReactor* MetaService::GetStats(grpc::CallbackServerContext* /*call*/,
                                                const v1::MetaServiceGetStatsRequest* /*request*/,
                                                v1::MetaServiceGetStatsResponse* response) {
  auto* call = new Call(metrics_, clock_, "GetStats");
  return EndWithQuery(call, loop_, [this, response](const ArbiterLoop::View& view) {
    const ArbiterCounts counts = view.arbiter.Counts();
    *response->mutable_incarnation() = EncodeIncarnation(view.arbiter.incarnation());
    for (const StoreSnapshot& store : view.arbiter.Stores()) {
      *response->add_stores() = EncodeStore(store);
    }
    response->set_rows(counts.rows);
    response->set_cut_points(index_.cut_points());
    response->set_fragments(counts.fragments);
    response->set_reservations(counts.reservations);
    response->set_leases(counts.leases);
    response->set_waiters(counts.waiters);
    response->set_namespaces(counts.namespaces);
    response->mutable_counts()->insert(counts.events.begin(), counts.events.end());
    response->set_version(kVersion);
  });
}

}  // namespace kvmesh::meta
