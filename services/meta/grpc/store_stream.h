// The reactor of one AttachStore stream.
#pragma once

#include "common/rpc/checked_service.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "services/meta/grpc/arbiter_loop.h"

namespace kvmesh::meta {

// Lives until gRPC is done with the stream and the arbiter's thread has forgotten it.
grpc::ServerBidiReactor<rpc::Parsed<v1::AttachStoreRequest>, v1::AttachStoreResponse>*
NewStoreStream(ArbiterLoop& loop, MetaMetrics& metrics, const Clock& clock);

}  // namespace kvmesh::meta
