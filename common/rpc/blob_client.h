// A caller's side of Put and Get. Blocking: for threads of one's own, never for a reaction. The
// slab's bytes are not copied: they are sent from where they lie, and given from where they came.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/trace.h"
#include "common/rpc/call_group.h"
#include "kvmesh/v1/blob.pb.h"

namespace kvmesh::rpc {

inline constexpr size_t kBlobChunkBytes = 1 << 20;

// A slab in memory. `owner` keeps the parts as they are; shared with gRPC, which may hold the last
// bytes a little longer than the call lasts.
struct SlabBytes {
  std::vector<absl::string_view> parts;  // one behind another
  std::shared_ptr<const void> owner;

  static SlabBytes Of(std::string slab);
};

// `slab` has header.size_bytes bytes; `trace` is what the call is a part of. The store's errors;
// DeadlineExceeded after `timeout`; Cancelled with its `group`, which may be null.
absl::StatusOr<v1::PutResponse> PutSlab(const std::shared_ptr<grpc::Channel>& channel,
                                        const v1::PutHeader& header, const SlabBytes& slab,
                                        absl::Duration timeout, CallGroup* group = nullptr,
                                        const Trace& trace = {});

// Calls `on_bytes` with the bytes of the header's ranges, in order, in views of any size that end
// with the call to it; its error ends the call and is the result. The store's errors; DataLoss: the
// answer has fewer or more bytes than its header says; DeadlineExceeded after `timeout`; Cancelled
// with its `group`, which may be null.
absl::StatusOr<v1::GetHeader> GetSlab(
    const std::shared_ptr<grpc::Channel>& channel, const v1::GetRequest& request,
    absl::Duration timeout,
    absl::FunctionRef<absl::Status(const v1::GetHeader&, absl::string_view)> on_bytes,
    CallGroup* group = nullptr, const Trace& trace = {});

}  // namespace kvmesh::rpc
