// What every kvmesh process does the same way: flags, logging, signals, the ready file.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/role.h"
#include "common/rpc/server.h"

namespace kvmesh::rpc {

// Exit codes of all programs (DESIGN §15).
enum ExitCode {
  kExitDone = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitUnavailable = 3,
  kExitRefused = 4,
  kExitInterrupted = 130
};

// Flags that every service has.
struct ServiceFlags {
  std::string listen = "127.0.0.1:0";
  std::string health_listen;   // of --health-address, or --health-port and the host of --listen
  std::string metrics_listen;  // from --metrics_port
  int health_port = -1;        // -1: none; 0: any
  int metrics_port = -1;
  bool allow_plaintext = false;      // off loopback
  Role role = Role::kOperator;       // of this process, set by its main before the flags are added
  std::string tls_folder;            // empty: plaintext
  std::string tls_allow_roles;       // empty: DefaultCallers(role)
  std::shared_ptr<TlsIdentity> tls;  // of the two; null: plaintext
  std::string ready_file;            // written once the service serves
  int drain_seconds = 30;
  int log_level = 0;  // glog severity
};

// Adds the flags, each with its explanation and default.
void AddServiceFlags(CLI::App& app, ServiceFlags& flags);

// Parses and checks. A value: the process ends with that code now (after --help, --version, or a
// wrong flag, which is named on stderr). Unknown flags are refused.
std::optional<int> ParseFlags(CLI::App& app, int argc, char** argv, ServiceFlags* flags);

// Logging to stderr, and SIGTERM/SIGINT blocked in this and all later threads. First thing in main,
// before any thread.
void InitProcess(const char* program, int log_level);
// The same for a service; warns where it serves other machines in plaintext.
void InitService(const char* program, const ServiceFlags& flags);

// Waits for SIGTERM or SIGINT and returns its number. A second one later ends the process at once.
int WaitForTermination();

// InvalidArgument: --listen is no loopback address and plaintext was not allowed explicitly.
absl::Status CheckPlaintext(const ServiceFlags& flags);

// The server's addresses from the flags.
ServerOptions ServerOptionsFrom(const ServiceFlags& flags);

// {"pid", "address", "health", "metrics"} as JSON, published atomically at flags.ready_file;
// nothing when that is empty.
absl::Status WriteReadyFile(const ServiceFlags& flags, const RpcServer& server);

}  // namespace kvmesh::rpc
