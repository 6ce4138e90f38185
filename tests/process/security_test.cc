// A mesh of real processes that speaks TLS and knows tenants: two replicas of each stage, three
// stores. What one tenant does is nothing to the other; who is not asked in stays out.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/sha256.h"
#include "common/rpc/role.h"
#include "tests/process/process_testing.h"
#include "tests/testing/dev_certs.h"
#include "tools/kvmesh/child.h"

namespace kvmesh::process_testing {
namespace {

using rpc::Role;
using testing::DevCerts;

constexpr char kAcmeToken[] = "acme-token-that-nobody-guesses";
constexpr char kBoltToken[] = "bolt-token-that-nobody-guesses";
constexpr char kCobaltToken[] = "cobalt-token-that-nobody-guesses";
constexpr char kAdminToken[] = "admin-token-that-nobody-guesses";
// Words that stand nowhere else.
constexpr char kPrompt[] =
    "Quetzalcoatlus northropi glides over Xochimilco while Zwiebelkuchen cools on the sill, and "
    "nobody in Llanfairpwllgwyngyll wonders why the Sphenisciformes applaud the Mississippi.";

cli::Json TenantEntry(const std::string& name, const std::string& token, const cli::Json& limits,
                      bool is_operator = false) {
  return {{"name", name},
          {"salt", Sha256Of("salt of " + name).ToHex()},
          {"key_sha256", {Sha256Of(token).ToHex()}},
          {"operator", is_operator},
          {"limits", limits}};
}

// One mesh for all tests of this file: it takes a while to start.
class SecureMesh {
 public:
  SecureMesh() {
    WriteClients({TenantEntry("acme", kAcmeToken, cli::Json::object()),
                  TenantEntry("bolt", kBoltToken, cli::Json::object()),
                  TenantEntry("cobalt", kCobaltToken, cli::Json::object()),
                  TenantEntry("admin", kAdminToken, cli::Json::object(), true)});
    dir_.File("acme.token", kAcmeToken);
    dir_.File("bolt.token", kBoltToken);
    dir_.File("cobalt.token", kCobaltToken);
    dir_.File("admin.token", kAdminToken);
    dir_.File("nobody.token", "nobody");
    const Outcome up =
        RunCli({"up", "--model", TinyModel(), "--data-dir", data_dir(), "--detach", "--shards", "2",
                "--replicas", "2", "--threads", "1", "--tiers", "ram,ram_file,disk",
                "--certificates", certs_.folder(), "--clients-file", clients_file()});
    EXPECT_EQ(up.exit_code, 0) << up.err;
    const absl::StatusOr<cli::MeshFile> file = cli::ReadMesh(data_dir());
    EXPECT_TRUE(file.ok()) << file.status();
    if (file.ok()) StartRouter(*file);
  }
  ~SecureMesh() { RunCli({"down", "--data-dir", data_dir(), "--grace-seconds", "5"}); }

  std::string data_dir() const { return dir_.path() + "/mesh"; }
  std::string clients_file() const { return dir_.path() + "/clients.json"; }
  const std::string& router() const { return router_address_; }
  const DevCerts& certs() const { return certs_; }
  const TempDir& dir() const { return dir_; }
  const cli::MeshFile& file() const { return file_; }
  // Of all services.
  std::string Logs() const {
    std::string all = router_->Err();
    for (const auto& log : std::filesystem::directory_iterator(data_dir() + "/logs")) {
      std::ifstream in(log.path());
      all.append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
    return all;
  }
  std::string AddressOf(const std::string& name) const {
    for (const cli::ServiceEntry& service : file_.services) {
      if (service.name == name) return service.address;
    }
    ADD_FAILURE() << "no service " << name;
    return "";
  }
  void WriteClients(const std::vector<cli::Json>& tenants) const {
    // Whole at once: the router may look at any time.
    dir_.File("clients.next", cli::Json({{"tenants", tenants}}).dump());
    std::filesystem::rename(dir_.path() + "/clients.next", clients_file());
  }

  // The command line of a client of `tenant`, or with the certificate of another role.
  std::vector<std::string> Command(const std::string& tenant, std::vector<std::string> arguments,
                                   Role role = Role::kClient) const {
    std::vector<std::string> command = {"--json", "--tls-dir", certs_.Of(role)};
    if (!tenant.empty()) {
      command.insert(command.end(), {"--token-file", dir_.path() + "/" + tenant + ".token"});
    }
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }
  Outcome Run(const std::string& tenant, std::vector<std::string> arguments,
              Role role = Role::kClient) const {
    return RunCli(Command(tenant, std::move(arguments), role));
  }
  Outcome Generate(const std::string& tenant, const std::string& prompt,
                   std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"generate", "--router",     router(),       "--prompt",
                                          prompt,     "--ignore-eos", "--max-tokens", "8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(tenant, std::move(arguments));
  }

 private:
  // A router of its own, which also saves prompts as short as these.
  void StartRouter(const cli::MeshFile& file) {
    file_ = file;
    router_address_ = absl::StrCat("127.0.0.1:", cli::FreePorts(1).value()[0]);
    std::string shards;
    std::string meta;
    for (const cli::ServiceEntry& service : file.services) {
      if (absl::StartsWith(service.name, "shard-")) {
        absl::StrAppend(&shards, shards.empty() ? "" : ",", service.address);
      }
      if (service.name == "meta") meta = service.address;
    }
    std::vector<std::string> command = {Program("kvmesh-router"), "--listen", router_address_};
    const auto add = [&command](const std::string& flag, const std::string& value) {
      command.insert(command.end(), {flag, value});
    };
    add("--model", TinyModel());
    add("--shards", shards);
    add("--meta", meta);
    add("--tls-dir", certs_.Of(Role::kRouter));
    add("--clients-file", clients_file());
    add("--metrics-port", "0");
    add("--health-address", "127.0.0.1:0");
    add("--ready-file", dir_.path() + "/router.ready");
    add("--min-tokens", "8");
    add("--cold-min-tokens", "8");
    add("--restore-min-tokens", "1");
    add("--trace-sample-ratio", "1");
    router_ = std::make_unique<Process>(command, dir_);
    EXPECT_TRUE(WaitUntil([&] {
      return Run("", {"status", "--router", router_address_}, Role::kOperator)
          .Json()
          .value("ready", false);
    })) << router_->Err();
  }

  TempDir dir_;
  const DevCerts certs_;
  cli::MeshFile file_;
  std::string router_address_;
  std::unique_ptr<Process> router_;
};

class Security : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { mesh_ = new SecureMesh(); }
  static void TearDownTestSuite() {
    delete mesh_;
    mesh_ = nullptr;
  }
  static SecureMesh* mesh_;
};
SecureMesh* Security::mesh_ = nullptr;

uint32_t Cached(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, cli::kDone) << outcome.err;
  if (outcome.exit_code != cli::kDone) return 0;
  return outcome.Json()["usage"]["cached_tokens"].get<uint32_t>();
}

std::string ReadyField(const std::string& path, const char* field) {
  std::ifstream in(path);
  const cli::Json json = cli::Json::parse(in, nullptr, false);
  return json.is_object() ? json.value(field, "") : "";
}

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
