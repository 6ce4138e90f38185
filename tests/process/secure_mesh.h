// A mesh of real processes that speaks TLS and knows tenants: two replicas of each stage, three
// stores, and a router that also saves prompts as short as those of these tests.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/rpc/role.h"
#include "tests/process/process_testing.h"
#include "tests/testing/dev_certs.h"
#include "tools/kvmesh/child.h"

namespace kvmesh::process_testing {

using rpc::Role;
using testing::DevCerts;

inline constexpr char kAcmeToken[] = "acme-token-that-nobody-guesses";
inline constexpr char kBoltToken[] = "bolt-token-that-nobody-guesses";
inline constexpr char kCobaltToken[] = "cobalt-token-that-nobody-guesses";
inline constexpr char kDeltaToken[] = "delta-token-that-nobody-guesses";
inline constexpr char kAdminToken[] = "admin-token-that-nobody-guesses";
// Words that stand nowhere else.
inline constexpr char kPrompt[] =
    "Quetzalcoatlus northropi glides over Xochimilco while Zwiebelkuchen cools on the sill, and "
    "nobody in Llanfairpwllgwyngyll wonders why the Sphenisciformes applaud the Mississippi.";

inline cli::Json TenantEntry(const std::string& name, const std::string& token,
                             const cli::Json& limits, bool is_operator = false) {
  return {{"name", name},
          {"salt", Sha256Of("salt of " + name).ToHex()},
          {"key_sha256", {Sha256Of(token).ToHex()}},
          {"operator", is_operator},
          {"limits", limits}};
}

// One mesh for all tests of a program: it takes a while to start.
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
    dir_.File("delta.token", kDeltaToken);
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
  static std::string AddressOfMetrics(const std::string& name) {
    for (const cli::ServiceEntry& service : mesh_->file().services) {
      if (service.name == name) return service.metrics;
    }
    return "";
  }
  static inline SecureMesh* mesh_ = nullptr;
};

inline uint32_t Cached(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, cli::kDone) << outcome.err;
  if (outcome.exit_code != cli::kDone) return 0;
  return outcome.Json()["usage"]["cached_tokens"].get<uint32_t>();
}

inline std::string ReadyField(const std::string& path, const char* field) {
  std::ifstream in(path);
  const cli::Json json = cli::Json::parse(in, nullptr, false);
  return json.is_object() ? json.value(field, "") : "";
}

}  // namespace kvmesh::process_testing
