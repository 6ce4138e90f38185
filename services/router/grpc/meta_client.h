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
#include "kvmesh/v1/meta.grpc.pb.h"
#include "services/router/core/effects.h"

namespace kvmesh::router {

class MetaClient {
 public:
  template <typename T>
  using Answer = std::function<void(absl::StatusOr<T>)>;

  // `layer_count`: of the whole model.
  MetaClient(const std::string& address, uint32_t layer_count);

  void Await(const AwaitParent& effect, std::function<void()> done);
  void Lookup(const LookupRow& effect, Answer<std::optional<FoundRow>> done);
  void Await(const AwaitFragment& effect, Answer<FoundFragment> done);
  void Reserve(const ReserveRow& effect, Answer<Reservation> done);

  // Best effort: what they end lapses by itself.
  void End(const EndLease& effect);
  void Cancel(const CancelReservation& effect);
  void Renew(const RenewHolds& effect);

 private:
  const std::shared_ptr<v1::MetaService::Stub> stub_;  // shared with the calls under way
  const uint32_t layer_count_;
};

}  // namespace kvmesh::router
