// A server that runs beside the bench, and what it costs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvmesh::bench {

class ServerProcess {
 public:
  // Runs `command`, which writes `ready_file` as JSON, a server its address among it;
  // `environment`: NAME=VALUE.
  ServerProcess(const std::vector<std::string>& command, const std::string& ready_file,
                const std::vector<std::string>& environment = {});
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const nlohmann::json& ready() const { return ready_; }
  std::string address() const { return ready_["address"].get<std::string>(); }
  double ready_seconds() const { return ready_seconds_; }
  pid_t pid() const { return pid_; }
  double CpuSeconds() const;
  uint64_t ResidentBytes() const;

 private:
  pid_t pid_ = 0;
  nlohmann::json ready_;
  double ready_seconds_ = 0;
};

// Of this process.
double OwnCpuSeconds();

}  // namespace kvmesh::bench
