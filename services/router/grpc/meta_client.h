// The arbiter as a router asks it. Answers come once, on threads of gRPC's, also when there is no
// arbiter: then UNAVAILABLE, at once or at the deadline that every call has.
//
// Thread-safe. Calls under way may outlive it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/trace.h"
#include "common/rpc/channel.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "services/router/core/effects.h"

namespace kvmesh::router {

class MetaClient {
 public:
  template <typename T>
  using Answer = std::function<void(absl::StatusOr<T>)>;

  // `tls`: null for plaintext. `layer_count`: of the whole model.
  MetaClient(const std::string& address, const std::shared_ptr<rpc::TlsIdentity>& tls,
             uint32_t layer_count);

  // `trace`: of the generation that asks.
  void Await(const AwaitParent& effect, const Trace& trace, std::function<void()> done);
  void Lookup(const LookupRow& effect, const Trace& trace, Answer<std::optional<FoundRow>> done);
  void Await(const AwaitFragment& effect, const Trace& trace, Answer<FoundFragment> done);
  // `store_bytes_max`: what the effect's namespace may have in all stores; 0: anything.
  void Reserve(const ReserveRow& effect, uint64_t store_bytes_max, const Trace& trace,
               Answer<Reservation> done);

  // Best effort: what they end lapses by itself.
  void End(const EndLease& effect);
  void Cancel(const CancelReservation& effect);
  void Renew(const RenewHolds& effect);

 private:
  const std::shared_ptr<v1::MetaService::Stub> stub_;  // shared with the calls under way
  const uint32_t layer_count_;
};

}  // namespace kvmesh::router
