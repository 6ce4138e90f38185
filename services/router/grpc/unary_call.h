// Everything that a unary call of the callback API needs until its callback, which alone keeps it.
#pragma once

#include <grpcpp/client_context.h>

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/span.h"

namespace kvmesh::router {

// Shared only because std::function wants copies.
template <typename Stub, typename Request, typename Response>
struct UnaryCall {
  UnaryCall(std::shared_ptr<Stub> its_stub, absl::Duration timeout, const Trace& trace = {})
      : stub(std::move(its_stub)) {
    rpc::AddTrace(context, trace);
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  }
  const std::shared_ptr<Stub> stub;  // shared: its owner may forget it first
  grpc::ClientContext context;
  Request request;
  Response response;
};

}  // namespace kvmesh::router
