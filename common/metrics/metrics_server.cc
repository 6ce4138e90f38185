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
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/metrics.h"

namespace kvmesh::metrics {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kRequestBytesMax = 8192;
constexpr size_t kConnectionsMax = 64;
constexpr std::chrono::seconds kConnectionMax{5};  // from the first byte to the last
constexpr std::chrono::milliseconds kLook{250};    // how often connections are held against that
constexpr int kBacklog = 64;

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

std::string Response(absl::string_view status, absl::string_view body) {
  return absl::StrCat(
      "HTTP/1.1 ", status,
      "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: ", body.size(),
      "\r\nConnection: close\r\n\r\n", body);
}

bool WouldBlock(ssize_t result) {
  return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

}  // namespace

// One scrape: reads the head of a request, then writes the answer. Never blocks.
class MetricsServer::Connection {
 public:
  explicit Connection(int fd) : fd_(fd), end_(SteadyClock::now() + kConnectionMax) {}
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  pollfd Waits() const {
    return {.fd = fd_, .events = static_cast<int16_t>(answer_.empty() ? POLLIN : POLLOUT)};
  }
  bool Expired(SteadyClock::time_point now) const { return now >= end_; }

  // Goes on as far as it can. False: it is over.
  bool Advance(const prometheus::Registry& registry) {
    if (answer_.empty() && !Read()) return false;
    if (answer_.empty() && HeadIsComplete()) answer_ = Answer(registry);
    return answer_.empty() || Write();
  }

 private:
  bool HeadIsComplete() const {
    return request_.size() >= kRequestBytesMax || absl::StrContains(request_, "\r\n\r\n");
  }

  // False: the peer has gone before its request was whole.
  bool Read() {
    char buffer[1024];
    while (!HeadIsComplete()) {
      const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
      if (got <= 0) return WouldBlock(got);
      request_.append(buffer, static_cast<size_t>(got));
    }
    return true;
  }

  // False: all is written, or the peer has gone.
  bool Write() {
    while (sent_ < answer_.size()) {
      const ssize_t now = send(fd_, answer_.data() + sent_, answer_.size() - sent_, MSG_NOSIGNAL);
      if (now <= 0) return WouldBlock(now);
      sent_ += static_cast<size_t>(now);
    }
    return false;
  }

  std::string Answer(const prometheus::Registry& registry) const {
    if (!absl::StartsWith(request_, "GET /metrics ") &&
        !absl::StartsWith(request_, "GET /metrics?")) {
      return Response("404 Not Found", "only GET /metrics is served here\n");
    }
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, registry.Collect());
    return Response("200 OK", text.str());
  }

  const int fd_;
  const SteadyClock::time_point end_;
  std::string request_;
  std::string answer_;
  size_t sent_ = 0;
};

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
  std::vector<std::unique_ptr<Connection>> connections;
  while (true) {
    std::vector<pollfd> events = {{.fd = wake_, .events = POLLIN},
                                  {.fd = listener_, .events = POLLIN}};
    events.reserve(events.size() + connections.size());
    for (const auto& connection : connections) events.push_back(connection->Waits());
    // Without a time limit while nobody is connected, by design: the destructor wakes it.
    const int wait_ms = connections.empty() ? -1 : static_cast<int>(kLook.count());
    if (poll(events.data(), events.size(), wait_ms) < 0 && errno != EINTR) return;
    if (events[0].revents != 0) return;
    const SteadyClock::time_point now = SteadyClock::now();
    for (size_t i = 0; i < connections.size(); ++i) {
      const bool ready = events[i + 2].revents != 0;
      if ((ready && !connections[i]->Advance(*registry_)) || connections[i]->Expired(now)) {
        connections[i].reset();
      }
    }
    std::erase(connections, nullptr);
    if (events[1].revents != 0) Accept(&connections);
  }
}

void MetricsServer::Accept(std::vector<std::unique_ptr<Connection>>* connections) const {
  const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  // The oldest makes room: whoever holds connections without using them must not keep scrapes out.
  if (connections->size() >= kConnectionsMax) connections->erase(connections->begin());
  connections->push_back(std::make_unique<Connection>(fd));
}

}  // namespace kvmesh::metrics
