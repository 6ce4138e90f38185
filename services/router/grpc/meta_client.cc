#include "services/router/grpc/meta_client.h"

#include <algorithm>
#include <utility>

#include "common/base/limits.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "services/router/grpc/meta_codec.h"
#include "services/router/grpc/unary_call.h"

namespace kvmesh::router {
namespace {

constexpr absl::Duration kEndTimeout = absl::Seconds(5);
// For an answer to come back behind the wait that its request names.
constexpr absl::Duration kAnswerSlack = absl::Milliseconds(200);

template <typename Request, typename Response>
using Call = UnaryCall<v1::MetaService::Stub, Request, Response>;

}  // namespace

MetaClient::MetaClient(const std::string& address, const std::shared_ptr<rpc::TlsIdentity>& tls,
                       uint32_t layer_count)
    : stub_(v1::MetaService::NewStub(rpc::MakeChannel(address, tls, rpc::Role::kMeta))),
      layer_count_(layer_count) {}

void MetaClient::Await(const AwaitParent& effect, const Trace& trace, std::function<void()> done) {
  auto call = std::make_shared<Call<v1::AwaitKeyRequest, v1::AwaitKeyResponse>>(
      stub_, effect.wait + kAnswerSlack, trace);
  call->request = EncodeAwaitKey(effect);
  stub_->async()->AwaitKey(&call->context, &call->request, &call->response,
                           [call, done = std::move(done)](const grpc::Status&) { done(); });
}

void MetaClient::Lookup(const LookupRow& effect, const Trace& trace,
                        Answer<std::optional<FoundRow>> done) {
  auto call =
      std::make_shared<Call<v1::LookupRequest, v1::LookupResponse>>(stub_, effect.timeout, trace);
  call->request = EncodeLookup(effect);
  stub_->async()->Lookup(&call->context, &call->request, &call->response,
                         [call, lease = effect.lease, bytes = effect.prompt->text.text().size(),
                          done = std::move(done)](const grpc::Status& status) {
                           if (!status.ok()) return done(rpc::FromGrpc(status));
                           done(DecodeLookup(call->response, lease, bytes));
                         });
}

void MetaClient::Await(const AwaitFragment& effect, const Trace& trace,
                       Answer<FoundFragment> done) {
  auto call = std::make_shared<Call<v1::AwaitFragmentRequest, v1::AwaitFragmentResponse>>(
      stub_, effect.appear_wait + effect.upload_wait + kAnswerSlack, trace);
  call->request = EncodeAwaitFragment(effect);
  stub_->async()->AwaitFragment(&call->context, &call->request, &call->response,
                                [call, effect, done = std::move(done)](const grpc::Status& status) {
                                  if (!status.ok()) return done(rpc::FromGrpc(status));
                                  done(DecodeFragment(call->response, effect));
                                });
}

void MetaClient::Reserve(const ReserveRow& effect, uint64_t store_bytes_max, const Trace& trace,
                         Answer<Reservation> done) {
  auto call =
      std::make_shared<Call<v1::ReserveRequest, v1::ReserveResponse>>(stub_, effect.timeout, trace);
  // The arbiter gives up first, and says why.
  call->request =
      EncodeReserve(effect, layer_count_, std::min(effect.timeout / 2, limits::kRoomWaitMax));
  call->request.set_namespace_bytes_max(store_bytes_max);
  stub_->async()->Reserve(&call->context, &call->request, &call->response,
                          [call, done = std::move(done)](const grpc::Status& status) {
                            if (!status.ok()) return done(rpc::FromGrpc(status));
                            done(DecodeReservation(call->response));
                          });
}

void MetaClient::End(const EndLease& effect) {
  auto call = std::make_shared<Call<v1::CheckinRequest, v1::CheckinResponse>>(stub_, kEndTimeout);
  call->request = EncodeCheckin(effect);
  stub_->async()->Checkin(&call->context, &call->request, &call->response,
                          [call](const grpc::Status&) {});
}

void MetaClient::Cancel(const CancelReservation& effect) {
  auto call = std::make_shared<Call<v1::CancelReservationRequest, v1::CancelReservationResponse>>(
      stub_, kEndTimeout);
  call->request = EncodeCancel(effect);
  stub_->async()->CancelReservation(&call->context, &call->request, &call->response,
                                    [call](const grpc::Status&) {});
}

void MetaClient::Renew(const RenewHolds& effect) {
  auto call = std::make_shared<Call<v1::RenewRequest, v1::RenewResponse>>(stub_, kEndTimeout);
  call->request = EncodeRenew(effect);
  stub_->async()->Renew(&call->context, &call->request, &call->response,
                        [call](const grpc::Status&) {});
}

}  // namespace kvmesh::router
