// Unary calls at full speed or at a steady rate.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <vector>

#include "kvmesh/v1/meta.pb.h"

namespace kvmesh::bench {

struct LoadResult {
  double seconds = 0;
  std::vector<double> latencies_us;  // one a call
  double per_second() const { return static_cast<double>(latencies_us.size()) / seconds; }
};

// Starts one call on a connection; `done` is called on a thread of gRPC's.
using StartCall = std::function<void(
    size_t connection, grpc::ClientContext* context, const kvmesh::v1::LookupRequest* request,
    kvmesh::v1::LookupResponse* response, std::function<void(grpc::Status)> done)>;

// Both end the bench at a call that fails or finds nothing.
// On each connection so many calls are under way all the time.
LoadResult AtFullSpeed(const StartCall& start, size_t connections, size_t in_flight, double seconds,
                       const std::vector<kvmesh::v1::LookupRequest>& requests);
// Calls begin at their times, whether or not earlier ones have ended; latencies count from then on.
// Stops when `stop` says so.
LoadResult AtRate(const StartCall& start, size_t connections, double per_second,
                  const std::function<bool()>& stop,
                  const std::vector<kvmesh::v1::LookupRequest>& requests, bool must_find = true);

}  // namespace kvmesh::bench
