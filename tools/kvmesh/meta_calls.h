// What the commands that speak to the arbiter share.
#pragma once

#include <grpcpp/client_context.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/status_bridge.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {

// --meta, required.
void AddMetaFlag(CLI::App& command, std::string* meta);

std::unique_ptr<v1::MetaService::Stub> MetaStub(const std::string& meta);
// Ten seconds from now.
std::chrono::system_clock::time_point MetaDeadline();

// One call by the stub's method.
template <typename Request, typename Response>
absl::Status CallMeta(v1::MetaService::Stub& stub,
                      grpc::Status (v1::MetaService::Stub::*method)(grpc::ClientContext*,
                                                                    const Request&, Response*),
                      const Request& request, Response* response) {
  grpc::ClientContext context;
  context.set_deadline(MetaDeadline());
  return rpc::FromGrpc((stub.*method)(&context, request, response));
}

Json RowJson(const v1::RowInfo& row);
Json NamespaceJson(const v1::CacheNamespace& key_namespace);
Json LayersJson(const v1::LayerRange& layers);
// The reason of a save as in flags: "cold".
std::string ReasonName(v1::SaveReason reason);
// "ram,disk": the tiers of a row's slabs, each once.
std::string TiersOf(const v1::RowInfo& row);

}  // namespace kvmesh::cli
