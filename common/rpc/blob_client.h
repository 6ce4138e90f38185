// A caller's side of Put and Get. Blocking: for threads of one's own, never for a reaction.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kvmesh/v1/blob.grpc.pb.h"

namespace kvmesh::rpc {

inline constexpr size_t kBlobChunkBytes = 1 << 20;

// `parts`, one behind another, are the slab: header.size_bytes bytes. The store's errors; and
// DeadlineExceeded after `timeout`.
absl::StatusOr<v1::PutResponse> PutSlab(v1::BlobService::StubInterface& stub,
                                        const v1::PutHeader& header,
                                        absl::Span<const absl::string_view> parts,
                                        absl::Duration timeout);

// Calls `on_chunk` with the bytes of the header's ranges, in order; its error ends the call and is
// the result. The store's errors; DataLoss: the answer has fewer or more bytes than its header
// says.
absl::StatusOr<v1::GetHeader> GetSlab(
    v1::BlobService::StubInterface& stub, const v1::GetRequest& request, absl::Duration timeout,
    absl::FunctionRef<absl::Status(const v1::GetHeader&, absl::string_view)> on_chunk);

}  // namespace kvmesh::rpc
