// The addresses this shard may dial: those of its --peers names and no others, whatever a frame
// asks for. A name is HOST:PORT, HOST:* or HOST (any port there); HOST may be a headless-service
// name, which is resolved again and again, or *.DOMAIN: any one label before it, which is how pods
// behind such a name are called. "*" allows everything. Thread-safe.
#pragma once

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"

namespace kvmesh::shard {

// Splits HOST:PORT or [V6]:PORT; the port is empty where there is none.
struct HostPort {
  std::string host;
  std::string port;
};
HostPort SplitAddress(const std::string& address);

class PeerBook {
 public:
  explicit PeerBook(const std::vector<std::string>& names);
  ~PeerBook();
  PeerBook(const PeerBook&) = delete;
  PeerBook& operator=(const PeerBook&) = delete;

  // Never blocks.
  bool Allows(const std::string& address) const;

 private:
  void ResolveLoop();

  std::vector<HostPort> names_;
  bool everything_ = false;
  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::pair<std::string, std::string>> resolved_
      ABSL_GUARDED_BY(mutex_);  // name's host, IP
  std::thread thread_;          // only when some name is not an IP address
};

}  // namespace kvmesh::shard
