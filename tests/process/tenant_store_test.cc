// What is stored for a tenant: its own limit holds, for it alone.
#include <map>
#include <set>

#include "tests/process/secure_mesh.h"

namespace kvmesh::process_testing {
namespace {

// The rows of each namespace: of each key what it takes.
std::map<std::string, std::map<std::string, uint64_t>> BytesByNamespace(const SecureMesh& mesh) {
  const Outcome rows =
      mesh.Run("", {"checkpoints", "ls", "--meta", mesh.AddressOf("meta")}, Role::kOperator);
  EXPECT_EQ(rows.exit_code, cli::kDone) << rows.err;
  std::map<std::string, std::map<std::string, uint64_t>> spaces;
  const cli::Json listed = rows.Json();
  for (const cli::Json& row : listed["checkpoints"]) {
    uint64_t bytes = 0;
    for (const cli::Json& slab : row["slabs"]) bytes += slab["size_bytes"].get<uint64_t>();
    spaces[row["namespace"]["ctx_params"].get<std::string>()][row["key"]] = bytes;
  }
  return spaces;
}

using TenantStore = Security;

uint64_t Sum(const std::map<std::string, uint64_t>& rows) {
  uint64_t bytes = 0;
  for (const auto& [key, size] : rows) bytes += size;
  return bytes;
}

TEST_F(TenantStore, WhatATenantHasStoredStaysWithinItsLimitAndNobodyElsesGoes) {
  EXPECT_TRUE(WaitUntil([&] { return Cached(mesh_->Generate("acme", kPrompt)) > 0; }));
  std::set<std::string> others;
  for (const auto& [space, rows] : BytesByNamespace(*mesh_)) others.insert(space);
  const auto write_clients = [](uint64_t store_bytes) {
    mesh_->WriteClients({TenantEntry("acme", kAcmeToken, cli::Json::object()),
                         TenantEntry("bolt", kBoltToken, cli::Json::object()),
                         TenantEntry("cobalt", kCobaltToken, cli::Json::object()),
                         TenantEntry("delta", kDeltaToken, {{"store_bytes", store_bytes}}),
                         TenantEntry("admin", kAdminToken, cli::Json::object(), true)});
  };
  const auto of_delta = [&] {
    for (const auto& [space, rows] : BytesByNamespace(*mesh_)) {
      if (others.count(space) == 0) return rows;
    }
    return std::map<std::string, uint64_t>();
  };
  write_clients(0);
  const auto ask = [](int number) {
    mesh_->Generate("delta", absl::StrCat(number, ". ", kPrompt));
  };
  ask(0);
  EXPECT_TRUE(WaitUntil([&] { return !of_delta().empty(); }));
  const std::map<std::string, uint64_t> first = of_delta();
  const uint64_t limit = 4 * first.begin()->second;
  write_clients(limit);
  // Saves come after answers: asks go on until the first rows had to go.
  int number = 0;
  EXPECT_TRUE(WaitUntil([&] {
    ask(++number);
    const std::map<std::string, uint64_t> rows = of_delta();
    EXPECT_LE(Sum(rows), limit);
    return rows.count(first.begin()->first) == 0;
  })) << number
      << " prompts";
  EXPECT_GT(Cached(mesh_->Generate("acme", kPrompt)), 0u);
  EXPECT_TRUE(WaitUntil([&] {
    return absl::StrContains(Metrics(AddressOfMetrics("meta")),
                             "kvmesh_meta_events_total{event=\"quota_evictions\"}");
  }));
}

}  // namespace
}  // namespace kvmesh::process_testing
