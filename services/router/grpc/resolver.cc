#include "services/router/grpc/resolver.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvmesh::router {

absl::StatusOr<std::vector<std::string>> Resolve(const std::string& name) {
  if (absl::StartsWith(name, "unix:")) return std::vector<std::string>{name};
  const size_t colon = name.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == name.size()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not host:port"));
  }
  std::string host = name.substr(0, colon);
  const std::string port = name.substr(colon + 1);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);

  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(name, ": ", gai_strerror(error)));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  std::vector<std::string> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    char host_text[NI_MAXHOST];
    char port_text[NI_MAXSERV];
    if (getnameinfo(each->ai_addr, each->ai_addrlen, host_text, sizeof(host_text), port_text,
                    sizeof(port_text), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
      continue;
    }
    const bool v6 = each->ai_family == AF_INET6;
    addresses.push_back(absl::StrCat(v6 ? "[" : "", host_text, v6 ? "]" : "", ":", port_text));
  }
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  return addresses;
}

}  // namespace kvmesh::router
