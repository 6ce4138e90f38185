// The one bridge between absl::Status (inside) and grpc::Status (on the wire). ErrorInfo and
// RetryInfo travel as google.rpc details in the standard `grpc-status-details-bin` trailer.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvmesh::rpc {

// The serialised details stay under limits::kStatusBytesMax: the message is cut first, then
// metadata is left out.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// "OK", "CANCELLED", … as in metrics labels.
absl::string_view CodeName(grpc::StatusCode code);

}  // namespace kvmesh::rpc
