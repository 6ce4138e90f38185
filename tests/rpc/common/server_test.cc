#include "common/rpc/server.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/rpc/channel.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "tests/testing/bad_text.h"

namespace kvmesh::rpc {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
}

grpc::Status Check(int port, const std::string& service, HealthCheckResponse* response) {
  auto stub = Health::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", port)));
  grpc::ClientContext context;
  SetDeadline(context);
  HealthCheckRequest request;
  request.set_service(service);
  return stub->Check(&context, request, response);
}

class RpcServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server =
        RpcServer::Start({.listen = "127.0.0.1:0", .health_listen = "127.0.0.1:0"}, {}, metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
  }
  metrics::Metrics metrics_{"test"};
  std::unique_ptr<RpcServer> server_;
};

TEST_F(RpcServerTest, HealthFollowsSetServingOnBothPorts) {
  for (int port : {server_->port(), server_->health_port()}) {
    server_->SetServing(false);
    HealthCheckResponse response;
    ASSERT_TRUE(Check(port, "", &response).ok());
    EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
    server_->SetServing(true);
    ASSERT_TRUE(Check(port, "", &response).ok());
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  }
}

TEST_F(RpcServerTest, LivenessIsAQuestionOfItsOwn) {
  const auto liveness = [this] {
    HealthCheckResponse response;
    EXPECT_TRUE(Check(server_->health_port(), "liveness", &response).ok());
    return response.status();
  };
  server_->SetServing(false);  // loads, drains, or waits for others
  EXPECT_EQ(liveness(), HealthCheckResponse::SERVING);
  server_->SetAlive(false);
  EXPECT_EQ(liveness(), HealthCheckResponse::NOT_SERVING);
  server_->SetServing(true);
  EXPECT_EQ(liveness(), HealthCheckResponse::NOT_SERVING);
  server_->SetAlive(true);
  EXPECT_EQ(liveness(), HealthCheckResponse::SERVING);
}

// The channel is told to go elsewhere, so a client behind a name finds other servers; its call that
// runs is not cut.
TEST(RpcServer, AnOldConnectionIsClosedSoftlyWhileItsCallsGoOn) {
  metrics::Metrics metrics("test");
  auto server = RpcServer::Start(
      {.listen = "127.0.0.1:0", .connection_age = absl::Milliseconds(300)}, {}, metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto channel = MakeChannel(absl::StrCat("127.0.0.1:", (*server)->port()));
  auto stub = Health::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  auto reader = stub->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  // The connection ages until the channel leaves it.
  EXPECT_TRUE(channel->WaitForStateChange(
      GRPC_CHANNEL_READY, std::chrono::system_clock::now() + std::chrono::seconds(60)));
  (*server)->SetServing(true);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  (*server)->Shutdown(absl::Seconds(5));
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(RpcServerTest, AnUnknownServiceIsNotFound) {
  HealthCheckResponse response;
  EXPECT_EQ(Check(server_->port(), "no.such.Service", &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(RpcServerTest, HealthRequestsThatAreNotUtf8NameTheirField) {
  for (int port : {server_->port(), server_->health_port()}) {
    testing::ExpectBadTextIsRefused(MakeChannel(absl::StrCat("127.0.0.1:", port)),
                                    "grpc.health.v1.Health");
  }
}

TEST_F(RpcServerTest, AHealthWatchSeesTheChangeAndEndsAtShutdown) {
  auto stub = Health::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", server_->port())));
  grpc::ClientContext context;
  SetDeadline(context);
  auto reader = stub->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  server_->SetServing(true);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  server_->Shutdown(absl::Seconds(5));
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(RpcServerTest, AnAddressInUseIsAnErrorThatNamesIt) {
  const std::string address = absl::StrCat("127.0.0.1:", server_->port());
  const auto second = RpcServer::Start({.listen = address}, {}, metrics_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(second.status().message()).find(address), std::string::npos);
}

TEST(RpcServer, APortBeyondTheLastOneIsRefusedAndNotWrapped) {
  metrics::Metrics metrics("test");
  for (const char* address : {"127.0.0.1:65536", "127.0.0.1:99999", "127.0.0.1:http",
                              "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1"}) {
    const auto server = RpcServer::Start({.listen = address}, {}, metrics);
    EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

// A socket connected to a port of this machine.
int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit{.tv_sec = 10, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

std::string HttpGet(int port, const std::string& path) {
  const int fd = ConnectTo(port);
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
    answer.append(buffer, static_cast<size_t>(n));
  close(fd);
  return answer;
}

TEST(RpcServer, MetricsAreServedOverHttp) {
  metrics::Metrics metrics("test");
  metrics.Counter("things_total", "Things", {{"kind", "good"}}).Increment(3);
  auto server =
      RpcServer::Start({.listen = "127.0.0.1:0", .metrics_listen = "127.0.0.1:0"}, {}, metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string page = HttpGet((*server)->metrics_port(), "/metrics");
  EXPECT_NE(page.find("kvmesh_test_things_total{kind=\"good\"} 3"), std::string::npos) << page;
  EXPECT_EQ(metrics.Value("kvmesh_test_things_total", {{"kind", "good"}}), 3);
}

TEST(RpcServer, PeersThatAskForNothingHoldUpNoScrape) {
  metrics::Metrics metrics("test");
  metrics.Counter("things_total", "Things").Increment();
  auto server =
      RpcServer::Start({.listen = "127.0.0.1:0", .metrics_listen = "127.0.0.1:0"}, {}, metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->metrics_port();
  std::vector<int> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(ConnectTo(port));  // more than are kept
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(HttpGet(port, "/metrics").find("kvmesh_test_things_total 1"), std::string::npos);
  }
  // One silent peer before a scrape would cost it its five seconds.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
  EXPECT_NE(HttpGet(port, "/else").find("404"), std::string::npos);
  for (const int fd : silent) close(fd);
}

TEST(RpcServer, APeerThatSendsHalfARequestIsCut) {
  metrics::Metrics metrics("test");
  auto server =
      RpcServer::Start({.listen = "127.0.0.1:0", .metrics_listen = "127.0.0.1:0"}, {}, metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  const int fd = ConnectTo((*server)->metrics_port());
  ASSERT_EQ(write(fd, "GET /met", 8), 8);
  char buffer[16];
  EXPECT_EQ(read(fd, buffer, sizeof(buffer)), 0);  // after five seconds, before the ten of read()
  close(fd);
}

// Four mebibytes are gRPC's own limit; hidden rows of a chunk are more.
TEST_F(RpcServerTest, MessagesPassUpToTheProjectsLimitAndNotBeyond) {
  HealthCheckResponse response;
  for (const size_t bytes : {(size_t{4} << 20) + 1, size_t{8672945}, size_t{31} << 20}) {
    EXPECT_EQ(Check(server_->port(), std::string(bytes, 'x'), &response).error_code(),
              grpc::StatusCode::NOT_FOUND)
        << bytes;  // it was read: there is no service of that name
  }
  EXPECT_EQ(Check(server_->port(), std::string(limits::kMessageBytesMax + 1, 'x'), &response)
                .error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// Answers any Detokenize with a text of so many bytes.
class LargeAnswers final : public v1::RouterService::Service {
 public:
  grpc::Status Detokenize(grpc::ServerContext* /*context*/, const v1::DetokenizeRequest* request,
                          v1::DetokenizeResponse* response) override {
    response->set_text_bytes(std::string(request->ids(0), 'x'));
    return grpc::Status::OK;
  }
};

TEST(RpcServer, AnswersPassUpToTheProjectsLimitToo) {
  LargeAnswers service;
  metrics::Metrics metrics("test");
  auto server =
      RpcServer::Start({.listen = "127.0.0.1:0"}, {{"kvmesh.v1.RouterService", &service}}, metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  auto stub =
      v1::RouterService::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", (*server)->port())));
  for (const uint32_t bytes : {uint32_t{8672945}, uint32_t{31} << 20}) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::DetokenizeRequest request;
    request.add_ids(bytes);
    v1::DetokenizeResponse response;
    EXPECT_TRUE(stub->Detokenize(&context, request, &response).ok()) << bytes;
    EXPECT_EQ(response.text_bytes().size(), bytes);
  }
}

// gRPC's own servers answer a ping more than each five minutes with GOAWAY, after two of them: a
// stream that is silent through a long prefill would end.
TEST_F(RpcServerTest, ASilentStreamOutlivesItsClientsPings) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  auto channel = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                           grpc::InsecureChannelCredentials(), arguments);
  auto stub = Health::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(22));
  auto reader = stub->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_FALSE(reader->Read(&response));  // nothing comes until the deadline, four pings later
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST(IsLoopback, OnlyAddressesOfThisMachineAlone) {
  for (const char* yes : {"127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/tmp/x", "127.9.9.9:1"})
    EXPECT_TRUE(IsLoopback(yes)) << yes;
  for (const char* no : {"0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example:1"})
    EXPECT_FALSE(IsLoopback(no)) << no;
}

}  // namespace
}  // namespace kvmesh::rpc
