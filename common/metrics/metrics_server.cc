#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <prometheus/text_serializer.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/metrics.h"

namespace kvmesh::metrics {
namespace {

constexpr size_t kRequestBytesMax = 8192;
constexpr timeval kPeerTimeout{.tv_sec = 5, .tv_usec = 0};
constexpr int kBacklog = 16;

absl::Status Failed(const std::string& address, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ", why));
}

// A socket that listens on the first usable meaning of `address`.
absl::StatusOr<int> Listen(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is not host:port"));
  }
  std::string host = address.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]"))
    host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (error != 0) return Failed(address, gai_strerror(error));
  const auto release = absl::MakeCleanup([found] { freeaddrinfo(found); });
  const int listener =
      socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
  if (listener < 0) return Failed(address, std::strerror(errno));
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listener, found->ai_addr, found->ai_addrlen) != 0 || listen(listener, kBacklog) != 0) {
    const int cause = errno;
    close(listener);
    return Failed(address, std::strerror(cause));
  }
  return listener;
}

int PortOf(int listener) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

// The head of a request, or as much of it as came in time.
std::string ReadRequest(int connection) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kPeerTimeout.tv_sec);
  std::string request;
  char buffer[1024];
  while (request.size() < kRequestBytesMax && !absl::StrContains(request, "\r\n\r\n") &&
         std::chrono::steady_clock::now() < end) {
    const ssize_t got = recv(connection, buffer, sizeof(buffer), 0);
    if (got <= 0) break;
    request.append(buffer, static_cast<size_t>(got));
  }
  return request;
}

void SendAll(int connection, const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t now = send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) return;
    sent += static_cast<size_t>(now);
  }
}

std::string Response(absl::string_view status, absl::string_view body) {
  return absl::StrCat(
      "HTTP/1.1 ", status,
      "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: ", body.size(),
      "\r\nConnection: close\r\n\r\n", body);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    const Metrics& metrics) {
  const absl::StatusOr<int> listener = Listen(address);
  if (!listener.ok()) return listener.status();
  const int wake = eventfd(0, EFD_CLOEXEC);
  if (wake < 0) {
    const int cause = errno;
    close(*listener);
    return Failed(address, std::strerror(cause));
  }
  std::unique_ptr<MetricsServer> server(
      new MetricsServer(*listener, wake, PortOf(*listener), metrics.registry()));
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

MetricsServer::MetricsServer(int listener, int wake, int port,
                             std::shared_ptr<prometheus::Registry> registry)
    : listener_(listener), wake_(wake), port_(port), registry_(std::move(registry)) {}

MetricsServer::~MetricsServer() {
  const uint64_t one = 1;
  // An eventfd that was never written takes one more count without blocking.
  if (write(wake_, &one, sizeof(one)) == sizeof(one) && thread_.joinable()) thread_.join();
  close(listener_);
  close(wake_);
}

void MetricsServer::Run() {
  while (true) {
    pollfd events[2] = {{.fd = listener_, .events = POLLIN}, {.fd = wake_, .events = POLLIN}};
    // Without a time limit by design: the destructor wakes it.
    if (poll(events, 2, -1) < 0 && errno != EINTR) return;
    if (events[1].revents != 0) return;
    if ((events[0].revents & POLLIN) == 0) continue;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    Answer(connection);
    close(connection);
  }
}

void MetricsServer::Answer(int connection) const {
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &kPeerTimeout, sizeof(kPeerTimeout));
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &kPeerTimeout, sizeof(kPeerTimeout));
  const std::string request = ReadRequest(connection);
  if (!absl::StartsWith(request, "GET /metrics ") && !absl::StartsWith(request, "GET /metrics?")) {
    SendAll(connection, Response("404 Not Found", "only GET /metrics is served here\n"));
    return;
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, registry_->Collect());
  SendAll(connection, Response("200 OK", text.str()));
}

}  // namespace kvmesh::metrics
