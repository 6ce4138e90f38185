#include "services/shard/grpc/peer_book.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <utility>

namespace kvmesh::shard {
namespace {

constexpr absl::Duration kResolveInterval = absl::Seconds(2);

bool IsIpAddress(const std::string& host) {
  in6_addr buffer;
  return inet_pton(AF_INET, host.c_str(), &buffer) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &buffer) == 1;
}

bool IsPattern(const std::string& host) {
  return host.size() > 2 && host[0] == '*' && host[1] == '.';
}

// `pattern` is *.DOMAIN; `host` one label and .DOMAIN.
bool Matches(const std::string& pattern, const std::string& host) {
  const size_t label = host.find('.');
  return label != std::string::npos && label > 0 &&
         host.compare(label, std::string::npos, pattern, 1, std::string::npos) == 0;
}

// The addresses of a name now; none when it does not resolve.
std::vector<std::string> Resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<std::string> ips;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return ips;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) ==
        0) {
      ips.emplace_back(text);
    }
  }
  freeaddrinfo(found);
  return ips;
}

}  // namespace

HostPort SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (!address.empty() && address.front() == '[') {
    const size_t bracket = address.find(']');
    if (bracket == std::string::npos) return {address, ""};
    const bool has_port = bracket + 1 < address.size() && address[bracket + 1] == ':';
    return {address.substr(1, bracket - 1), has_port ? address.substr(bracket + 2) : ""};
  }
  if (colon == std::string::npos || address.find(':') != colon) return {address, ""};
  return {address.substr(0, colon), address.substr(colon + 1)};
}

PeerBook::PeerBook(const std::vector<std::string>& names) {
  bool must_resolve = false;
  for (const std::string& name : names) {
    if (name == "*") {
      everything_ = true;
      continue;
    }
    HostPort peer = SplitAddress(name);
    if (peer.port == "*") peer.port.clear();
    must_resolve |= !IsIpAddress(peer.host) && !IsPattern(peer.host);
    names_.push_back(std::move(peer));
  }
  if (must_resolve) thread_ = std::thread([this] { ResolveLoop(); });
}

PeerBook::~PeerBook() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

bool PeerBook::Allows(const std::string& address) const {
  if (everything_) return true;
  const HostPort wanted = SplitAddress(address);
  MutexLock lock(&mutex_);
  for (const HostPort& name : names_) {
    if (!name.port.empty() && name.port != wanted.port) continue;
    if (IsPattern(name.host)
            ? Matches(name.host, wanted.host)
            : name.host == wanted.host || resolved_.count({name.host, wanted.host}) > 0) {
      return true;
    }
  }
  return false;
}

void PeerBook::ResolveLoop() {
  for (;;) {
    std::set<std::pair<std::string, std::string>> resolved;
    for (const HostPort& name : names_) {
      if (IsIpAddress(name.host) || IsPattern(name.host)) continue;
      for (std::string& ip : Resolve(name.host)) resolved.emplace(name.host, std::move(ip));
    }
    MutexLock lock(&mutex_);
    // A name server that is silent for a moment does not take peers away.
    if (!resolved.empty()) resolved_ = std::move(resolved);
    if (stopping_) return;
    wake_.WaitFor(&mutex_, kResolveInterval);
    if (stopping_) return;
  }
}

}  // namespace kvmesh::shard
