// Spans of the calls that a server takes and that carry a sampled trace: one line of the log each,
// by an interceptor, so that no service need think of it.
//
// Left out: Forward, whose messages would all pass through here on the way of every token (the
// shard makes its span itself), Generate and Chat (likewise, the router), and streams that are no
// part of a request.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace kvmesh::rpc {

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallTracer();

}  // namespace kvmesh::rpc
