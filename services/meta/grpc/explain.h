// Why a prompt does or does not hit (DESIGN §5.7). For operators: it sees across namespaces.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "kvmesh/v1/meta.pb.h"
#include "services/meta/grpc/arbiter_loop.h"
#include "services/meta/index/read_index.h"

namespace kvmesh::meta {

// Fills `response` and calls `done` once: on the loop's thread, or at once where it refused.
// `response` must live until then. Goes through all rows of the index on the caller's thread, about
// a second for a million, asks the stores for the texts of those that may share most, and takes the
// nearest: exact where no other can share more, else said so.
void Explain(ArbiterLoop& loop, const ReadIndex& index, MonoTime now,
             slab::KeyNamespace key_namespace, std::string text,
             v1::ExplainLookupResponse* response, std::function<void(const absl::Status&)> done);

}  // namespace kvmesh::meta
