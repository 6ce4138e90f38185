// One Lookup: in the index, on the caller's thread; with `checkout` also pinned by the arbiter's.
#pragma once

#include <memory>

#include "kvmesh/v1/meta.pb.h"
#include "services/meta/grpc/asking_call.h"
#include "services/meta/index/read_index.h"

namespace kvmesh::meta {

// Deletes itself. All references and pointers outlive the call. `response` may hold an earlier one.
grpc::ServerUnaryReactor* NewLookupCall(ArbiterLoop& loop, const ReadIndex& index,
                                        MetaMetrics& metrics, const Clock& clock,
                                        const v1::LookupRequest& request,
                                        v1::LookupResponse* response);

}  // namespace kvmesh::meta
