// The RPCs of kvmesh.v1.MetaService: checks shapes, looks up in the read index, gives commands to
// the arbiter's thread, converts statuses, counts.
#pragma once

#include <atomic>

#include "common/rpc/checked_service.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "services/meta/grpc/arbiter_loop.h"
#include "services/meta/grpc/meta_metrics.h"
#include "services/meta/index/read_index.h"

namespace kvmesh::meta {

class MetaService final : public rpc::CheckedService<v1::MetaService> {
 public:
  struct Limits {
    absl::Duration lease_ttl;
    absl::Duration reservation_ttl;
  };

  // All references outlive the service.
  MetaService(ArbiterLoop& loop, const ReadIndex& index, MetaMetrics& metrics, const Clock& clock,
              const Limits& limits);

  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* call,
                                   const v1::LookupRequest* request,
                                   v1::LookupResponse* response) override;
  grpc::ServerUnaryReactor* Checkout(grpc::CallbackServerContext* call,
                                     const v1::CheckoutRequest* request,
                                     v1::CheckoutResponse* response) override;
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* call,
                                  const v1::RenewRequest* request,
                                  v1::RenewResponse* response) override;
  grpc::ServerUnaryReactor* Checkin(grpc::CallbackServerContext* call,
                                    const v1::CheckinRequest* request,
                                    v1::CheckinResponse* response) override;
  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* call,
                                    const v1::ReserveRequest* request,
                                    v1::ReserveResponse* response) override;
  grpc::ServerUnaryReactor* CancelReservation(grpc::CallbackServerContext* call,
                                              const v1::CancelReservationRequest* request,
                                              v1::CancelReservationResponse* response) override;
  grpc::ServerUnaryReactor* AwaitKey(grpc::CallbackServerContext* call,
                                     const v1::AwaitKeyRequest* request,
                                     v1::AwaitKeyResponse* response) override;
  grpc::ServerUnaryReactor* AwaitFragment(grpc::CallbackServerContext* call,
                                          const v1::AwaitFragmentRequest* request,
                                          v1::AwaitFragmentResponse* response) override;
  grpc::ServerUnaryReactor* ExplainLookup(grpc::CallbackServerContext* call,
                                          const v1::ExplainLookupRequest* request,
                                          v1::ExplainLookupResponse* response) override;
  grpc::ServerUnaryReactor* ListRows(grpc::CallbackServerContext* call,
                                     const v1::ListRowsRequest* request,
                                     v1::ListRowsResponse* response) override;
  grpc::ServerUnaryReactor* ListReservations(grpc::CallbackServerContext* call,
                                             const v1::ListReservationsRequest* request,
                                             v1::ListReservationsResponse* response) override;
  grpc::ServerUnaryReactor* EvictRows(grpc::CallbackServerContext* call,
                                      const v1::EvictRowsRequest* request,
                                      v1::EvictRowsResponse* response) override;
  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* call,
                                     const v1::MetaServiceGetStatsRequest* request,
                                     v1::MetaServiceGetStatsResponse* response) override;

 private:
  ArbiterLoop& loop_;
  const ReadIndex& index_;
  MetaMetrics& metrics_;
  const Clock& clock_;
  const Limits limits_;
  std::atomic<int> explanations_{0};  // under way
  rpc::MessagePool<v1::LookupRequest, v1::LookupResponse> lookups_;
};

}  // namespace kvmesh::meta
