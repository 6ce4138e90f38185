#include "tools/kvmesh/metrics_page.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kvmesh::cli {
namespace {

constexpr timeval kPatience{.tv_sec = 10, .tv_usec = 0};
constexpr size_t kPageBytesMax = 16 << 20;

}  // namespace

absl::StatusOr<std::string> FetchMetrics(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  sockaddr_in to{.sin_family = AF_INET};
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port > 65535 || inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("no address of metrics: \"", address, "\""));
  }
  to.sin_port = htons(static_cast<uint16_t>(port));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto close_it = absl::MakeCleanup([fd] { close(fd); });
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  std::string answer;
  ssize_t got = -1;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    while ((got = recv(fd, buffer, sizeof(buffer), 0)) > 0 && answer.size() < kPageBytesMax) {
      answer.append(buffer, static_cast<size_t>(got));
    }
  }
  const size_t body = answer.find("\r\n\r\n");
  if (got < 0 || body == std::string::npos) {
    return absl::UnavailableError(
        absl::StrCat("no metrics from ", address, ": ", std::strerror(errno)));
  }
  return answer.substr(body + 4);
}

double MetricOn(absl::string_view page, absl::string_view sample) {
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (space == absl::string_view::npos || line.substr(0, space) != sample) continue;
    if (absl::SimpleAtod(line.substr(space + 1), &value)) return value;
  }
  return 0;
}

}  // namespace kvmesh::cli
