// A server that runs beside the bench, and what it costs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvmesh::bench {

class ServerProcess {
 public:
  // Runs `command`, which writes its address to `ready_file` as JSON; `environment`: NAME=VALUE.
  ServerProcess(const std::vector<std::string>& command, const std::string& ready_file,
                const std::vector<std::string>& environment = {});
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& address() const { return address_; }
  double ready_seconds() const { return ready_seconds_; }
  pid_t pid() const { return pid_; }
  double CpuSeconds() const;

 private:
  pid_t pid_ = 0;
  std::string address_;
  double ready_seconds_ = 0;
};

// Of this process.
double OwnCpuSeconds();

}  // namespace kvmesh::bench
