#include "common/rpc/method_roles.h"

#include "absl/container/flat_hash_map.h"

namespace kvmesh::rpc {
namespace {

constexpr Roles kOperators = {Role::kOperator};
constexpr Roles kRouters = {Role::kRouter, Role::kOperator};
constexpr Roles kShards = {Role::kShard, Role::kOperator};
constexpr Roles kRoutersAndShards = {Role::kRouter, Role::kShard, Role::kOperator};

using Table = absl::flat_hash_map<absl::string_view, Roles>;

const Table& Methods() {
  static const auto* table = new Table{
      {"/kvmesh.v1.ShardService/Forward", kRoutersAndShards},
      {"/kvmesh.v1.ShardService/Watch", kRouters},
      {"/kvmesh.v1.ShardService/Describe", kRouters},
      {"/kvmesh.v1.ShardService/ListSessions", kOperators},
      {"/kvmesh.v1.ShardService/GetSession", kRouters},
      {"/kvmesh.v1.ShardService/DropSession", kRouters},
      {"/kvmesh.v1.ShardService/Drain", kOperators},
      {"/kvmesh.v1.MetaService/Lookup", kRouters},
      {"/kvmesh.v1.MetaService/Checkout", kRouters},
      {"/kvmesh.v1.MetaService/Renew", kRouters},
      {"/kvmesh.v1.MetaService/Checkin", kRouters},
      {"/kvmesh.v1.MetaService/Reserve", kRoutersAndShards},
      {"/kvmesh.v1.MetaService/CancelReservation", kRoutersAndShards},
      {"/kvmesh.v1.MetaService/AwaitKey", kRouters},
      {"/kvmesh.v1.MetaService/AwaitFragment", kRouters},
      {"/kvmesh.v1.MetaService/ExplainLookup", kOperators},
      {"/kvmesh.v1.MetaService/ListRows", kOperators},
      {"/kvmesh.v1.MetaService/ListReservations", kOperators},
      {"/kvmesh.v1.MetaService/EvictRows", kOperators},
      {"/kvmesh.v1.MetaService/GetStats", kOperators},
      {"/kvmesh.v1.MetaService/AttachStore", Roles{Role::kBlob}},
      {"/kvmesh.v1.BlobService/Put", kShards},
      {"/kvmesh.v1.BlobService/Get", kRoutersAndShards},
      {"/kvmesh.v1.BlobService/Delete", kOperators},
      {"/kvmesh.v1.BlobService/Stat", kOperators},
      {"/kvmesh.v1.BlobService/List", kOperators},
      {"/kvmesh.v1.BlobService/Verify", kOperators},
      {"/kvmesh.v1.BlobService/GetStats", kOperators},
  };
  return *table;
}

}  // namespace

std::optional<Roles> CallersOfMethod(absl::string_view path) {
  const auto found = Methods().find(path);
  if (found == Methods().end()) return std::nullopt;
  return found->second;
}

}  // namespace kvmesh::rpc
