// What one tenant does is nothing to the other; who is not asked in stays out.
#include <map>
#include <set>

#include "absl/strings/str_split.h"
#include "tests/process/secure_mesh.h"

namespace kvmesh::process_testing {
namespace {

TEST_F(Security, WhatOneTenantHasStoredIsNothingToTheOther) {
  const Outcome cold = mesh_->Generate("acme", kPrompt);
  EXPECT_EQ(Cached(cold), 0u);
  const std::string key = cold.Json()["finish_key"];
  ASSERT_EQ(key.size(), 64u) << cold.out;
  // Warm as soon as the save has gone through.
  EXPECT_TRUE(WaitUntil([&] { return Cached(mesh_->Generate("acme", kPrompt)) > 0; }));
  // The others' prompt is as cold as if nobody had asked before, with the key in hand too; what
  // they are told is the same.
  const auto expect_cold = [&](const std::string& tenant, const std::vector<std::string>& more) {
    const Outcome other = mesh_->Generate(tenant, kPrompt, more);
    EXPECT_EQ(Cached(other), 0u) << tenant;
    EXPECT_EQ(other.Json()["usage"]["outcome"], "COLD");
    EXPECT_EQ(other.Json()["usage"]["cause"], "no_row");
    EXPECT_EQ(other.Json()["token_ids"], cold.Json()["token_ids"]);
    EXPECT_NE(other.Json()["finish_key"], key);
  };
  expect_cold("bolt", {});
  expect_cold("cobalt", {"--parent-key", key});
}

TEST_F(Security, TheArbiterSeesANameSpaceForEachTenant) {
  for (const char* tenant : {"acme", "bolt", "cobalt"}) {
    EXPECT_TRUE(WaitUntil([&] { return Cached(mesh_->Generate(tenant, kPrompt)) > 0; }));
  }
  const Outcome rows =
      mesh_->Run("", {"checkpoints", "ls", "--meta", mesh_->AddressOf("meta")}, Role::kOperator);
  ASSERT_EQ(rows.exit_code, cli::kDone) << rows.err;
  std::set<std::string> spaces;
  const cli::Json listed = rows.Json();
  for (const cli::Json& row : listed["checkpoints"]) {
    spaces.insert(row["namespace"]["ctx_params"].get<std::string>());
  }
  EXPECT_EQ(spaces.size(), 3u) << rows.out;
}

TEST_F(Security, AClientReachesNeitherSessionsNorCheckpointsNorSlabs) {
  const std::string meta = mesh_->AddressOf("meta");
  const std::vector<std::vector<std::string>> calls = {
      {"sessions", "--shard", mesh_->AddressOf("shard-0")},
      {"checkpoints", "ls", "--meta", meta},
      {"reservations", "ls", "--meta", meta},
      {"explain", "--meta", meta, "--prompt", kPrompt},
      {"slab", "ls", "--store", mesh_->AddressOf("tier-disk")}};
  for (const std::vector<std::string>& call : calls) {
    const Outcome client = mesh_->Run("acme", call);
    EXPECT_EQ(client.exit_code, cli::kUnavailable) << call[0] << ": " << client.err;
    const Outcome operators = mesh_->Run("", call, Role::kOperator);
    EXPECT_NE(operators.exit_code, cli::kUnavailable) << call[0] << ": " << operators.err;
  }
  for (const cli::ServiceEntry& service : mesh_->file().services) {
    if (service.name != "meta") continue;
    const std::string metrics = Metrics(service.metrics);
    EXPECT_NE(
        metrics.find("kvmesh_meta_peers_refused_total{reason=\"wrong_role\",side=\"client\"} "),
        std::string::npos);
    EXPECT_EQ(
        metrics.find("kvmesh_meta_peers_refused_total{reason=\"wrong_role\",side=\"client\"} 0"),
        std::string::npos)
        << "refused peers are counted";
  }
}

TEST_F(Security, TheLoadOfShardsIsToldToOperatorsAlone) {
  const auto shards = [](const std::string& tenant) {
    const Outcome status = mesh_->Run(tenant, {"status", "--router", mesh_->router()});
    EXPECT_EQ(status.exit_code, cli::kDone) << status.err;
    return status.Json()["shards"];
  };
  EXPECT_EQ(shards("bolt").size(), 4u);
  EXPECT_EQ(shards("admin").size(), 4u);
  for (const cli::Json& shard : shards("bolt")) EXPECT_EQ(shard["bytes_used"], 0u);
}

TEST_F(Security, WithoutAGoodTokenNobodyIsServed) {
  for (const char* tenant : {"", "nobody"}) {
    const Outcome outcome = mesh_->Generate(tenant, "hello");
    EXPECT_EQ(outcome.exit_code, cli::kFailed);
    EXPECT_EQ(outcome.Json()["error"]["code"], "UNAUTHENTICATED") << outcome.out;
  }
  // A part of the mesh is no client.
  EXPECT_EQ(mesh_->Run("acme", {"status", "--router", mesh_->router()}, Role::kShard).exit_code,
            cli::kRefused);
  const std::string metrics = Metrics(ReadyField(mesh_->dir().path() + "/router.ready", "metrics"));
  for (const char* reason : {"no_token", "unknown_token"}) {
    EXPECT_NE(
        metrics.find(absl::StrCat("kvmesh_router_callers_refused_total{reason=\"", reason, "\"} ")),
        std::string::npos)
        << reason;
  }
}

TEST_F(Security, ProbesNeedNoCertificate) {
  const std::string health = ReadyField(mesh_->dir().path() + "/router.ready", "health");
  EXPECT_EQ(Health(health), grpc::health::v1::HealthCheckResponse::SERVING);
}

// The spans of each trace that the logs hold, by "service name".
std::map<std::string, std::multimap<std::string, cli::Json>> Spans(const std::string& logs) {
  std::map<std::string, std::multimap<std::string, cli::Json>> traces;
  for (const absl::string_view line : absl::StrSplit(logs, '\n')) {
    const size_t at = line.find("] span {");
    if (at == absl::string_view::npos) continue;
    const absl::string_view json = line.substr(at + 7);
    cli::Json span = cli::Json::parse(json.begin(), json.end(), nullptr, false);
    EXPECT_TRUE(span.is_object()) << line;
    const std::string name = absl::StrCat(span.value("service", ""), " ", span.value("name", ""));
    traces[span.value("trace_id", "")].emplace(name, std::move(span));
  }
  return traces;
}

TEST_F(Security, TheSpansOfARequestLeadThroughEveryHop) {
  Cached(mesh_->Generate("acme", std::string("trace: ") + kPrompt));
  const auto parents_are_right = [](const std::multimap<std::string, cli::Json>& spans) {
    const auto router = spans.find("router generate");
    const auto put = spans.find("blob Put");
    if (router == spans.end() || put == spans.end() || spans.count("meta Lookup") == 0 ||
        spans.count("meta Reserve") == 0 || spans.count("shard forward") != 2 ||
        router->second["attributes"]["tenant"] != "acme") {
      return false;
    }
    std::map<int, cli::Json> hops;
    const auto [first, end] = spans.equal_range("shard forward");
    for (auto it = first; it != end; ++it) {
      hops[it->second["attributes"]["hop"].get<int>()] = it->second;
    }
    EXPECT_EQ(hops[0]["parent_span_id"], router->second["span_id"]);
    EXPECT_EQ(hops[1]["parent_span_id"], hops[0]["span_id"]);
    EXPECT_EQ(spans.find("meta Lookup")->second["parent_span_id"], router->second["span_id"]);
    EXPECT_TRUE(put->second["parent_span_id"] == hops[0]["span_id"] ||
                put->second["parent_span_id"] == hops[1]["span_id"]);
    EXPECT_EQ(router->second["status"], "OK");
    return true;
  };
  EXPECT_TRUE(WaitUntil([&] {
    for (const auto& [trace, spans] : Spans(mesh_->Logs())) {
      if (parents_are_right(spans)) return true;
    }
    return false;
  }));
}

// The last ones: they change the file of clients.
TEST_F(Security, LimitsAreATenantsOwn) {
  mesh_->WriteClients(
      {TenantEntry("acme", kAcmeToken, {{"tokens_per_minute", 20}, {"kv_bytes", 1 << 30}}),
       TenantEntry("bolt", kBoltToken, cli::Json::object())});
  const Outcome refused = mesh_->Generate("acme", kPrompt);
  EXPECT_EQ(refused.exit_code, cli::kRefused) << refused.out;
  EXPECT_TRUE(absl::StrContains(refused.err, "tokens_per_minute of tenant acme is 20"))
      << refused.err;
  EXPECT_EQ(mesh_->Generate("bolt", kPrompt).exit_code, cli::kDone);
}

TEST_F(Security, AKeyThatIsTakenOutIsRefusedAndAWrongFileChangesNothing) {
  mesh_->dir().File("clients.json", "{");
  EXPECT_EQ(mesh_->Generate("bolt", "hello").exit_code, cli::kDone);
  mesh_->WriteClients({TenantEntry("bolt", "another", cli::Json::object())});
  const Outcome refused = mesh_->Generate("bolt", "hello");
  EXPECT_EQ(refused.Json()["error"]["code"], "UNAUTHENTICATED") << refused.out;
}

TEST_F(Security, NeitherLogsNorMetricsHoldPromptsAnswersTokensOrSalts) {
  std::string all = mesh_->Logs();
  ASSERT_TRUE(absl::StrContains(all, "session "));  // the logs are there
  all += Metrics(ReadyField(mesh_->dir().path() + "/router.ready", "metrics"));
  for (const cli::ServiceEntry& service : mesh_->file().services) all += Metrics(service.metrics);
  for (const std::string& secret :
       {std::string("Quetzal"), std::string("Zwiebelkuchen"), std::string("Sphenisci"),
        std::string(kAcmeToken), std::string(kBoltToken), std::string(kCobaltToken),
        std::string(kAdminToken), Sha256Of(kAcmeToken).ToHex(), Sha256Of("salt of acme").ToHex()}) {
    EXPECT_FALSE(absl::StrContains(all, secret)) << secret;
  }
}

}  // namespace
}  // namespace kvmesh::process_testing
