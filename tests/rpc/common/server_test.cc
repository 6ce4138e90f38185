#include "common/rpc/server.h"

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "grpc/health/v1/health.grpc.pb.h"

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

TEST_F(RpcServerTest, AnUnknownServiceIsNotFound) {
  HealthCheckResponse response;
  EXPECT_EQ(Check(server_->port(), "no.such.Service", &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
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

std::string HttpGet(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  timeval limit{.tv_sec = 10};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
    EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
      answer.append(buffer, static_cast<size_t>(n));
  }
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

TEST(IsLoopback, OnlyAddressesOfThisMachineAlone) {
  for (const char* yes : {"127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/tmp/x", "127.9.9.9:1"})
    EXPECT_TRUE(IsLoopback(yes)) << yes;
  for (const char* no : {"0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example:1"})
    EXPECT_FALSE(IsLoopback(no)) << no;
}

}  // namespace
}  // namespace kvmesh::rpc
