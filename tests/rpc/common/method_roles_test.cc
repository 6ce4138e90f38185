// Who may call what, once in: each method of the mesh's inner services has its callers.
#include "common/rpc/method_roles.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/metrics/metrics.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/tls_identity.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "tests/testing/dev_certs.h"

namespace kvmesh::rpc {
namespace {

using testing::DevCerts;

const google::protobuf::ServiceDescriptor* ServiceOf(const std::string& name) {
  return google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("kvmesh.v1." + name);
}

TEST(MethodRoles, EveryMethodOfTheInnerServicesHasItsCallersAmongThoseOfItsService) {
  v1::RouterService::service_full_name();  // links the descriptors
  const std::pair<const char*, Role> services[] = {
      {"ShardService", Role::kShard}, {"MetaService", Role::kMeta}, {"BlobService", Role::kBlob}};
  for (const auto& [name, role] : services) {
    const google::protobuf::ServiceDescriptor* service = ServiceOf(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string path = absl::StrCat("/kvmesh.v1.", name, "/", service->method(i)->name());
      const std::optional<Roles> callers = CallersOfMethod(path);
      ASSERT_TRUE(callers.has_value()) << path;
      for (const Role caller : {Role::kAnonymous, Role::kClient, Role::kMeta}) {
        EXPECT_FALSE(callers->Has(caller)) << path;
      }
      for (const Role caller : {Role::kRouter, Role::kShard, Role::kBlob, Role::kOperator}) {
        if (callers->Has(caller)) {
          EXPECT_TRUE(DefaultCallers(role).Has(caller)) << path << " " << RoleName(caller);
        }
      }
    }
  }
}

TEST(MethodRoles, TheRoutersMethodsHealthAndReflectionAreForWhoeverMayCallTheService) {
  for (const char* path :
       {"/kvmesh.v1.RouterService/Generate", "/kvmesh.v1.RouterService/Drain",
        "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "", "/"}) {
    EXPECT_FALSE(CallersOfMethod(path).has_value()) << path;
  }
}

TEST(MethodRoles, WhoIsInMayNotCallWhatIsNotItsOwn) {
  const DevCerts certs;
  const auto load = [&certs](Role role, Roles callers = {}) {
    auto tls = TlsIdentity::Load({.folder = certs.Of(role), .own = {role}, .callers = callers});
    EXPECT_TRUE(tls.ok()) << tls.status();
    return *std::move(tls);
  };
  metrics::Metrics metrics("test");
  v1::MetaService::Service meta;  // every method is UNIMPLEMENTED: a call that gets there
  auto server = RpcServer::Start(
      {.listen = "127.0.0.1:0", .tls = load(Role::kMeta, DefaultCallers(Role::kMeta))},
      {{"kvmesh.v1.MetaService", &meta}}, metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto refused = [&metrics] {
    return metrics.Value("kvmesh_test_peers_refused_total",
                         {{"side", "client"}, {"reason", "wrong_role"}});
  };
  const auto call = [&](Role caller, bool evict) {
    auto stub = v1::MetaService::NewStub(
        MakeChannel(absl::StrCat("127.0.0.1:", (*server)->port()), load(caller), Role::kMeta));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::EvictRowsResponse evicted;
    v1::ReserveResponse reserved;
    return evict ? stub->EvictRows(&context, {}, &evicted) : stub->Reserve(&context, {}, &reserved);
  };
  using grpc::StatusCode;
  EXPECT_EQ(call(Role::kOperator, true).error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(call(Role::kRouter, false).error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(call(Role::kShard, false).error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(refused(), 0);
  for (const Role caller : {Role::kRouter, Role::kShard, Role::kBlob}) {
    const grpc::Status status = call(caller, true);
    EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED) << RoleName(caller);
    EXPECT_EQ(status.error_message(),
              absl::StrCat("/kvmesh.v1.MetaService/EvictRows is for the roles operator; the "
                           "caller's certificate names ",
                           RoleName(caller)));
  }
  EXPECT_EQ(call(Role::kBlob, false).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(refused(), 4);
}

}  // namespace
}  // namespace kvmesh::rpc
