// One service as a process of its own, which a test kills, freezes and starts again on its address.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/process/process_testing.h"

namespace kvmesh::process_testing {

class ServerProcess {
 public:
  // `command`: the program and its flags, but for --listen, --metrics-port and --ready-file. It is
  // not started yet. `name`: for messages.
  ServerProcess(std::string name, std::vector<std::string> command);

  // Starts it and waits until it says that it serves; on the address of the time before, if any.
  void Start();
  // With SIGKILL; it is gone when this returns.
  void Kill();
  // With SIGTERM; fails the test when it does not drain and end well.
  void Terminate();
  // The second half of Terminate.
  void AwaitEnd();
  // A peer that is there and does not answer, until Thaw.
  void Freeze();
  void Thaw();
  void Signal(int number) const { process_->Signal(number); }
  bool running() const { return process_ != nullptr; }

  const std::string& name() const { return name_; }
  // Once it was started; they stay.
  const std::string& address() const { return address_; }
  const std::string& metrics_address() const { return metrics_; }
  std::string Log() const { return process_ == nullptr ? "" : process_->Err(); }
  // The sum of the samples of /metrics whose line begins so:
  // "kvmesh_router_saves_total{reason=\"cold\",result=\"started\"}".
  double Metric(const std::string& prefix) const;

 private:
  const std::string name_;
  const std::vector<std::string> command_;
  const TempDir dir_;
  std::string address_ = "127.0.0.1:0";
  std::string metrics_;
  std::unique_ptr<Process> process_;
};

}  // namespace kvmesh::process_testing
