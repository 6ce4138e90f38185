#include <grpcpp/create_channel.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/small_file.h"
#include "common/metrics/metrics.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/tls_identity.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/testing/dev_certs.h"
#include "tests/testing/wait_until.h"

namespace kvmesh::rpc {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using testing::DevCerts;
using testing::WaitUntil;

std::shared_ptr<TlsIdentity> Identity(const std::string& folder, Role own, Roles callers = {}) {
  auto tls = TlsIdentity::Load({.folder = folder, .own = {own}, .callers = callers});
  EXPECT_TRUE(tls.ok()) << tls.status();
  return tls.ok() ? *tls : nullptr;
}

// Two authorities with a certificate for every role; tests do not change them.
const DevCerts& Ours() {
  static const DevCerts certs;
  return certs;
}
const DevCerts& Theirs() {
  static const DevCerts certs({Role::kRouter, Role::kShard});
  return certs;
}

// A shard's server, and what becomes of a call to it.
class TlsServer {
 public:
  TlsServer(const std::string& folder, Roles callers = DefaultCallers(Role::kShard)) {
    auto server = RpcServer::Start({.listen = "127.0.0.1:0",
                                    .health_listen = "127.0.0.1:0",
                                    .tls = Identity(folder, Role::kShard, callers)},
                                   {}, metrics_);
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) server_ = *std::move(server);
  }

  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel) {
    auto stub = Health::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    HealthCheckResponse response;
    return stub->Check(&context, HealthCheckRequest(), &response);
  }
  // As `tls` (null: plaintext), of a peer that must be a `wanted`.
  grpc::Status Call(const std::shared_ptr<TlsIdentity>& tls, Role wanted = Role::kShard) const {
    return Call(MakeChannel(address(), tls, wanted));
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  std::string health_address() const { return absl::StrCat("127.0.0.1:", server_->health_port()); }

  // Clients refused for `reason`. A refused client learns of it when the server hangs up, just
  // after the server has counted.
  double Refused(const std::string& reason) const {
    return metrics_.Value("kvmesh_test_peers_refused_total",
                          {{"side", "client"}, {"reason", reason}});
  }

 private:
  metrics::Metrics metrics_{"test"};
  std::unique_ptr<RpcServer> server_;
};

TEST(Tls, RolesOnTheListGetInAndOthersAreRefusedAndCounted) {
  const DevCerts& certs = Ours();
  const TlsServer server(certs.Of(Role::kShard));
  for (const Role caller : {Role::kRouter, Role::kShard, Role::kOperator}) {
    EXPECT_TRUE(server.Call(Identity(certs.Of(caller), caller)).ok()) << RoleName(caller);
  }
  EXPECT_EQ(server.Refused("wrong_role"), 0);
  double refused = 0;
  for (const Role caller : {Role::kClient, Role::kBlob, Role::kMeta}) {
    const grpc::Status status = server.Call(Identity(certs.Of(caller), caller));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << RoleName(caller);
    EXPECT_GT(server.Refused("wrong_role"), refused);
    refused = server.Refused("wrong_role");
  }
}

TEST(Tls, ARoleThatIsTakenOffTheListIsRefused) {
  const DevCerts& certs = Ours();
  const auto router = Identity(certs.Of(Role::kRouter), Role::kRouter);
  EXPECT_TRUE(TlsServer(certs.Of(Role::kShard)).Call(router).ok());
  const TlsServer server(certs.Of(Role::kShard), {Role::kShard});
  EXPECT_FALSE(server.Call(router).ok());
  EXPECT_GE(server.Refused("wrong_role"), 1);
}

TEST(Tls, ACertificateOfAnotherAuthorityIsRefusedOnBothSides) {
  const DevCerts& ours = Ours();
  const DevCerts& theirs = Theirs();
  const TlsServer server(ours.Of(Role::kShard));
  // The stranger trusts our server, but is not trusted by it.
  const std::string stranger = theirs.CopyOf(Role::kRouter, "stranger");
  std::filesystem::copy_file(ours.folder() + "/ca/ca.crt", stranger + "/ca.crt",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_FALSE(server.Call(Identity(stranger, Role::kRouter)).ok());
  EXPECT_GE(server.Refused("unknown_authority"), 1);
  // And a server of another authority is refused by our client.
  const TlsServer impostor(theirs.Of(Role::kShard));
  const auto client = Identity(ours.Of(Role::kRouter), Role::kRouter);
  metrics::Metrics metrics("test");
  client->CountIn(metrics);
  EXPECT_FALSE(impostor.Call(client).ok());
  EXPECT_GE(metrics.Value("kvmesh_test_peers_refused_total",
                          {{"side", "server"}, {"reason", "unknown_authority"}}),
            1);
}

TEST(Tls, AServerOfAnotherRoleIsNotSpokenTo) {
  const DevCerts& certs = Ours();
  const TlsServer server(certs.Of(Role::kShard));
  const auto router = Identity(certs.Of(Role::kRouter), Role::kRouter);
  metrics::Metrics metrics("test");
  router->CountIn(metrics);
  EXPECT_FALSE(server.Call(router, Role::kMeta).ok());
  EXPECT_GE(metrics.Value("kvmesh_test_peers_refused_total",
                          {{"side", "server"}, {"reason", "wrong_role"}}),
            1);
}

TEST(Tls, ExpiredAndNotYetValidCertificatesAreRefused) {
  const DevCerts certs({Role::kRouter}, &Ours());
  const TlsServer server(Ours().Of(Role::kShard));
  certs.Renew(Role::kRouter, -1);
  EXPECT_FALSE(server.Call(Identity(certs.Of(Role::kRouter), Role::kRouter)).ok());
  EXPECT_GE(server.Refused("expired"), 1);
  certs.Renew(Role::kRouter, 10, 2);
  EXPECT_FALSE(server.Call(Identity(certs.Of(Role::kRouter), Role::kRouter)).ok());
  EXPECT_GE(server.Refused("not_yet_valid"), 1);
}

TEST(Tls, ACallerWithoutACertificateGetsInOnlyWhereAnonymousIsListed) {
  const DevCerts& certs = Ours();
  const TlsServer closed(certs.Of(Role::kShard));
  const TlsServer open(certs.Of(Role::kShard), {Role::kClient, Role::kAnonymous});
  const auto anonymous = grpc::experimental::TlsCredentials([&] {
    grpc::experimental::TlsChannelCredentialsOptions options;
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
            *ReadSmallFile(certs.folder() + "/ca/ca.crt")));
    options.watch_root_certs();
    options.set_check_call_host(false);
    options.set_certificate_verifier(
        std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
    return options;
  }());
  const auto call = [&](const TlsServer& server) {
    return TlsServer::Call(grpc::CreateCustomChannel(server.address(), anonymous,
                                                     MakeChannelArguments(nullptr, Role::kShard)));
  };
  EXPECT_TRUE(call(open).ok());
  EXPECT_FALSE(call(closed).ok());
  EXPECT_GE(closed.Refused("no_certificate"), 1);
}

TEST(Tls, OnlyTls13IsSpoken) {
  const DevCerts& certs = Ours();
  const TlsServer server(certs.Of(Role::kShard));
  const auto handshake = [&](const std::string& version) {
    const std::string folder = certs.Of(Role::kRouter);
    const std::string command =
        absl::StrCat("echo | timeout 20 openssl s_client -connect ", server.address(),
                     " -alpn h2 -cert ", folder, "/tls.crt -key ", folder, "/tls.key -tls", version,
                     " 2>/dev/null | grep -q 'New, TLSv'");
    return std::system(command.c_str()) == 0;  // NOLINT(cert-env33-c)
  };
  EXPECT_TRUE(handshake("1_3"));
  EXPECT_FALSE(handshake("1_2"));
}

TEST(Tls, HealthForProbesStaysPlaintextAndTheServiceDoesNot) {
  const DevCerts& certs = Ours();
  const TlsServer server(certs.Of(Role::kShard));
  EXPECT_TRUE(TlsServer::Call(MakeChannel(server.health_address())).ok());
  EXPECT_FALSE(TlsServer::Call(MakeChannel(server.address())).ok());
}

TEST(Tls, ARenewedCertificateTakesEffectWithoutARestart) {
  const DevCerts certs({Role::kShard}, &Ours());
  certs.Renew(Role::kShard, -1);
  const TlsServer server(certs.Of(Role::kShard));
  const auto router = Identity(Ours().Of(Role::kRouter), Role::kRouter);
  EXPECT_FALSE(server.Call(router).ok());
  certs.Renew(Role::kShard, 10);
  EXPECT_TRUE(WaitUntil([&] { return server.Call(router).ok(); }));
}

TEST(Tls, AnotherAuthorityTakesEffectWithoutARestartAndABrokenFileDoesNot) {
  const DevCerts ours({Role::kShard, Role::kRouter}, &Ours());
  const DevCerts& theirs = Theirs();
  const TlsServer server(ours.Of(Role::kShard));
  const std::string roots = ours.Of(Role::kShard) + "/ca.crt";
  // Knows our server, shows a certificate of theirs.
  const std::string folder = theirs.CopyOf(Role::kRouter, "known");
  std::filesystem::copy_file(ours.folder() + "/ca/ca.crt", folder + "/ca.crt",
                             std::filesystem::copy_options::overwrite_existing);
  const auto router = Identity(folder, Role::kRouter);
  EXPECT_FALSE(server.Call(router).ok());
  std::ofstream(roots) << "no certificate";
  EXPECT_TRUE(server.Call(Identity(ours.Of(Role::kRouter), Role::kRouter)).ok());
  std::ofstream(roots) << *ReadSmallFile(ours.folder() + "/ca/ca.crt")
                       << *ReadSmallFile(theirs.folder() + "/ca/ca.crt");
  EXPECT_TRUE(WaitUntil([&] { return server.Call(router).ok(); }));
}

TEST(Tls, WhatIsWrongWithTheFilesIsSaidAtTheStart) {
  const DevCerts& certs = Ours();
  const auto refusal = [](const std::string& folder, Role own) {
    const auto tls = TlsIdentity::Load({.folder = folder, .own = {own}});
    return tls.ok() ? std::string() : std::string(tls.status().message());
  };
  EXPECT_EQ(refusal("/nowhere", Role::kShard), "cannot read /nowhere/tls.crt");
  EXPECT_EQ(refusal(certs.Of(Role::kBlob), Role::kShard),
            certs.Of(Role::kBlob) +
                "/tls.crt names the role blob, not shard (as a URI like spiffe://kvmesh/router)");
  const std::string folder = certs.CopyOf(Role::kShard, "changed");
  std::filesystem::copy_file(certs.Of(Role::kBlob) + "/tls.key", folder + "/tls.key",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(refusal(folder, Role::kShard),
            folder + "/tls.key: the private key is not the certificate's");
  std::ofstream(folder + "/tls.key") << "nothing";
  EXPECT_EQ(refusal(folder, Role::kShard),
            folder + "/tls.key: no private key in PEM form without a passphrase");
  std::ofstream(folder + "/tls.crt") << "nothing";
  EXPECT_EQ(refusal(folder, Role::kShard), folder + "/tls.crt: no certificate in PEM form");
}

TEST(Roles, AListNamesRolesAndAnUnknownOneIsShown) {
  const auto roles = ParseRoles(" router, anonymous");
  ASSERT_TRUE(roles.ok());
  EXPECT_TRUE(roles->Has(Role::kRouter) && roles->Has(Role::kAnonymous));
  EXPECT_FALSE(roles->Has(Role::kShard));
  EXPECT_EQ(ParseRoles("router,admin").status().message(),
            "\"admin\" is none of anonymous, router, shard, meta, blob, client, operator");
  EXPECT_FALSE(ParseRoles(" ,").ok());
}

TEST(Roles, AUriNamesARoleOrNone) {
  for (const Role role :
       {Role::kRouter, Role::kShard, Role::kMeta, Role::kBlob, Role::kClient, Role::kOperator}) {
    EXPECT_EQ(RoleOfUri(RoleUri(role)), role);
  }
  for (const char* uri : {"spiffe://kvmesh/anonymous", "spiffe://kvmesh/", "spiffe://other/router",
                          "spiffe://kvmesh/router/x", "router", ""}) {
    EXPECT_EQ(RoleOfUri(uri), std::nullopt) << uri;
  }
}

}  // namespace
}  // namespace kvmesh::rpc
