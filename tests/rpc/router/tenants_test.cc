// RouterService for several tenants: who may do what, and what one sees of the others.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "common/base/error_info.h"
#include "common/base/sha256.h"
#include "tests/rpc/router/router_fixture.h"

namespace kvmesh::router {
namespace {

class RouterTenants : public RouterFixture {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() /
             absl::StrCat("kvmesh-clients-", RandomId<InstanceId>().ToHex()))
                .string();
    options_.clients_file = path_;
    WriteClients({{"acme", ""}, {"bolt", ""}, {"admin", "", true}});
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }

  struct Entry {
    std::string name;  // of the tenant; its token is the name and "-token"
    std::string limits;
    bool is_operator = false;
  };
  void WriteClients(const std::vector<Entry>& entries) const {
    std::string tenants;
    for (const Entry& entry : entries) {
      absl::StrAppend(&tenants, tenants.empty() ? "" : ",", R"({"name":")", entry.name,
                      R"(","salt":")", Sha256Of(entry.name).ToHex(), R"(","key_sha256":[")",
                      Sha256Of(entry.name + "-token").ToHex(), R"("],"operator":)",
                      entry.is_operator ? "true" : "false", R"(,"limits":{)", entry.limits, "}}");
    }
    WriteFile(absl::StrCat(R"({"tenants":[)", tenants, "]}"));
  }
  void WriteFile(const std::string& content) const {
    std::ofstream(path_ + ".next") << content;
    std::filesystem::rename(path_ + ".next", path_);
  }

  // A call's context with the token of this tenant; empty: none.
  static void Fill(grpc::ClientContext& context, const std::string& tenant) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    if (!tenant.empty()) context.AddMetadata("authorization", "Bearer " + tenant + "-token");
  }
  Answer GenerateAs(const std::string& tenant, const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    Fill(context, tenant);
    return Read(*stub_->Generate(&context, request));
  }
  std::vector<std::string> GenerationsSeenBy(const std::string& tenant) {
    grpc::ClientContext context;
    Fill(context, tenant);
    v1::ListGenerationsResponse response;
    EXPECT_TRUE(stub_->ListGenerations(&context, {}, &response).ok());
    std::vector<std::string> ids;
    for (const v1::GenerationInfo& info : response.generations()) {
      ids.push_back(info.generation_id());
    }
    return ids;
  }
  grpc::StatusCode CancelAs(const std::string& tenant, const std::string& id) {
    grpc::ClientContext context;
    Fill(context, tenant);
    v1::CancelGenerationRequest request;
    request.set_generation_id(id);
    v1::CancelGenerationResponse response;
    return stub_->CancelGeneration(&context, request, &response).error_code();
  }
  v1::GetStatusResponse StatusAs(const std::string& tenant) {
    grpc::ClientContext context;
    Fill(context, tenant);
    v1::GetStatusResponse response;
    EXPECT_TRUE(stub_->GetStatus(&context, {}, &response).ok());
    return response;
  }
  grpc::StatusCode DrainAs(const std::string& tenant) {
    grpc::ClientContext context;
    Fill(context, tenant);
    v1::RouterServiceDrainResponse response;
    return stub_->Drain(&context, {}, &response).error_code();
  }

  std::string path_;
};

// A generation of acme that waits for a route until it is cancelled: no shard serves.
class WaitingGeneration {
 public:
  explicit WaitingGeneration(std::function<Answer()> run)
      : thread_([this, run = std::move(run)] { answer_ = run(); }) {}
  ~WaitingGeneration() {
    if (thread_.joinable()) thread_.join();
  }
  Answer Wait() {
    thread_.join();
    return answer_;
  }

 private:
  Answer answer_;
  std::thread thread_;
};

TEST_F(RouterTenants, AGenerationIsSeenAndEndedByItsTenantAndOperatorsAlone) {
  StartRouter({"127.0.0.1:1"});
  WaitingGeneration waiting([this] { return GenerateAs("acme", Request("abc", 4)); });
  ASSERT_TRUE(Eventually([this] { return GenerationsSeenBy("acme").size() == 1; }));
  const std::string id = GenerationsSeenBy("acme")[0];
  EXPECT_EQ(GenerationsSeenBy("admin"), std::vector<std::string>{id});
  EXPECT_TRUE(GenerationsSeenBy("bolt").empty());
  EXPECT_EQ(StatusAs("acme").generations_running(), 1u);
  EXPECT_EQ(StatusAs("admin").generations_running(), 1u);
  EXPECT_EQ(StatusAs("bolt").generations_running(), 0u);
  EXPECT_EQ(StatusAs("bolt").generations_queued(), 0u);
  // As an id that never was.
  EXPECT_EQ(CancelAs("bolt", id), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(CancelAs("bolt", std::string(32, '0')), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(GenerationsSeenBy("acme").size(), 1u);
  EXPECT_EQ(CancelAs("acme", id), grpc::StatusCode::OK);
  EXPECT_TRUE(absl::IsCancelled(waiting.Wait().status));
}

TEST_F(RouterTenants, WithoutAGoodTokenEveryCallIsRefusedAndCounted) {
  StartRouter({"127.0.0.1:1"});
  for (const std::string tenant : {"", "nobody"}) {
    EXPECT_TRUE(absl::IsUnauthenticated(GenerateAs(tenant, Request("a", 1)).status)) << tenant;
    EXPECT_EQ(CancelAs(tenant, std::string(32, '0')), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(DrainAs(tenant), grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_EQ(Metric("callers_refused_total", {{"reason", "no_token"}}), 3);
  EXPECT_EQ(Metric("callers_refused_total", {{"reason", "unknown_token"}}), 3);
  for (const std::string header : {"Basic YTpi", "Bearer ", "acme-token"}) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", header);
    v1::GetStatusResponse response;
    EXPECT_EQ(stub_->GetStatus(&context, {}, &response).error_code(),
              grpc::StatusCode::UNAUTHENTICATED)
        << header;
  }
  EXPECT_EQ(Metric("callers_refused_total", {{"reason", "malformed"}}), 3);
}

TEST_F(RouterTenants, DrainIsForOperators) {
  StartRouter({"127.0.0.1:1"});
  EXPECT_EQ(DrainAs("acme"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_FALSE(StatusAs("acme").draining());
  EXPECT_EQ(DrainAs("admin"), grpc::StatusCode::OK);
  EXPECT_TRUE(StatusAs("acme").draining());
}

TEST_F(RouterTenants, EachTenantsStateHasANameSpaceOfItsOwn) {
  FakeShard shard({});
  StartRouter({shard.address()});
  ASSERT_TRUE(Eventually([this] { return StatusAs("admin").ready(); }));
  std::set<std::string> spaces;
  for (const std::string tenant : {"acme", "bolt", "admin", "acme"}) {
    const Answer answer = GenerateAs(tenant, Request("abc", 3));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.token_ids, FakeGenerate(Ids("abc"), 3));
    const v1::Open open = shard.opens().back();
    EXPECT_EQ(open.tenant(), tenant);
    spaces.insert(open.namespace_().ctx_params_hash());
  }
  EXPECT_EQ(spaces.size(), 3u);
  EXPECT_EQ(Metric("tenant_tokens_total", {{"tenant", "acme"}}), 12);
}

TEST_F(RouterTenants, ALimitRefusesItsTenantAndNobodyElse) {
  WriteClients({{"acme", R"("generations":1)"}, {"bolt", ""}});
  StartRouter({"127.0.0.1:1"});
  WaitingGeneration waiting([this] { return GenerateAs("acme", Request("abc", 4)); });
  ASSERT_TRUE(Eventually([this] { return GenerationsSeenBy("acme").size() == 1; }));
  const absl::Status refused = GenerateAs("acme", Request("abc", 4)).status;
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(ReasonOf(refused), reason::kTenantLimit);
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_EQ(Metric("tenant_refusals_total", {{"tenant", "acme"}, {"limit", "generations"}}), 1);
  WaitingGeneration other([this] { return GenerateAs("bolt", Request("abc", 4)); });
  ASSERT_TRUE(Eventually([this] { return GenerationsSeenBy("bolt").size() == 1; }));
  for (const std::string tenant : {"acme", "bolt"}) {
    EXPECT_EQ(CancelAs(tenant, GenerationsSeenBy(tenant)[0]), grpc::StatusCode::OK);
  }
}

TEST_F(RouterTenants, TokensAreCountedByWhatWasRun) {
  FakeShard shard({});
  WriteClients({{"acme", R"("tokens_per_minute":20)"}, {"admin", "", true}});
  StartRouter({shard.address()});
  ASSERT_TRUE(Eventually([this] { return StatusAs("admin").ready(); }));
  const absl::Status never = GenerateAs("acme", Request("abc", 18)).status;
  EXPECT_EQ(never.message(), "tokens_per_minute of tenant acme is 20; 0 in use, 21 more wanted");
  EXPECT_FALSE(RetryDelayOf(never).has_value());
  EXPECT_TRUE(GenerateAs("acme", Request("abc", 14)).status.ok());
  const absl::Status later = GenerateAs("acme", Request("abc", 14)).status;
  EXPECT_TRUE(RetryDelayOf(later).has_value()) << later;
}

TEST_F(RouterTenants, TheFileIsReadAgainWhenItChangesAndAWrongOneChangesNothing) {
  StartRouter({"127.0.0.1:1"});
  const auto refused = [this](const std::string& tenant) {
    return CancelAs(tenant, std::string(32, '0')) == grpc::StatusCode::UNAUTHENTICATED;
  };
  EXPECT_FALSE(refused("acme"));
  EXPECT_TRUE(refused("late"));
  WriteFile("{");
  EXPECT_FALSE(refused("acme"));
  EXPECT_EQ(Metric("clients_file_ok"), 0);
  WriteClients({{"late", ""}});
  EXPECT_TRUE(refused("acme"));
  EXPECT_FALSE(refused("late"));
  EXPECT_EQ(Metric("clients_file_ok"), 1);
}

TEST_F(RouterTenants, AWrongFileIsToldAtTheStart) {
  WriteFile(R"({"tenants":[{"name":"a b"}]})");
  const auto router = RouterServer::Start(options_, Model(), clock_);
  EXPECT_EQ(router.status().message(),
            path_ +
                ": tenants[0].name is not 1 to 64 letters, digits, dots, dashes and "
                "underscores");
}

}  // namespace
}  // namespace kvmesh::router
