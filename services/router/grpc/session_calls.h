// Unary calls about one session at one shard; each looks after itself.
#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "kvmesh/v1/shard.grpc.pb.h"

namespace kvmesh::router {

// Whether the shard answers GetSession at all within `timeout`; what it answers does not matter. A
// null stub does not.
void ProbeSession(std::shared_ptr<v1::ShardService::Stub> stub, const SessionId& session,
                  absl::Duration timeout, std::function<void(bool answered)> done);

// Best effort: TTLs catch what it misses.
void SendDropSession(std::shared_ptr<v1::ShardService::Stub> stub, const SessionId& session,
                     SessionEpoch epoch);

}  // namespace kvmesh::router
