// What a router knows, as inspection RPCs show it. Pure.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "kvmesh/v1/router.pb.h"
#include "services/router/grpc/discovery.h"
#include "services/router/grpc/generation_driver.h"

namespace kvmesh::router {

// Route, missing layers and shards of `response`.
void ReportShards(const std::vector<ShardView>& views, absl::Span<const ShardFacts> facts,
                  const ModelIdentity& identity, v1::GetStatusResponse* response);

void ReportGeneration(const GenerationDriver::Info& info, v1::GenerationInfo* proto);

// Takes out what tells of other clients' doings: live sessions and memory in use.
void HideLoad(v1::GetStatusResponse* response);

}  // namespace kvmesh::router
