#include "common/rpc/process.h"

#include <glog/logging.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/version.h"
#include "common/rpc/tls_identity.h"

namespace kvmesh::rpc {
namespace {

sigset_t TerminationSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// A flag that is refused may have come from an environment variable that nobody thinks of.
void TellEnvironment(const CLI::App& app, absl::string_view error) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_envname().empty() || !absl::StartsWith(error, option->get_name())) continue;
    const char* value = std::getenv(option->get_envname().c_str());
    if (value == nullptr) continue;
    std::fprintf(stderr, "(the environment has %s=%s)\n", option->get_envname().c_str(), value);
  }
}

std::string HostOf(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

// --tls-dir and --tls-allow-roles. Errors of TlsIdentity::Load and ParseRoles, with the flag.
absl::Status LoadTls(ServiceFlags& flags) {
  TlsOptions options{
      .folder = flags.tls_folder, .own = {flags.role}, .callers = DefaultCallers(flags.role)};
  if (!flags.tls_allow_roles.empty()) {
    const absl::StatusOr<Roles> roles = ParseRoles(flags.tls_allow_roles);
    if (!roles.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tls-allow-roles: ", roles.status().message()));
    }
    options.callers = *roles;
  }
  if (flags.tls_folder.empty()) {
    if (flags.tls_allow_roles.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--tls-allow-roles says nothing without --tls-dir");
  }
  absl::StatusOr<std::shared_ptr<TlsIdentity>> tls = TlsIdentity::Load(options);
  if (!tls.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-dir: ", tls.status().message()));
  }
  flags.tls = *std::move(tls);
  return absl::OkStatus();
}

std::string WithPort(const std::string& listen, int port) {
  return absl::StrCat(HostOf(listen), ":", port);
}

}  // namespace

void AddServiceFlags(CLI::App& app, ServiceFlags& flags) {
  app.set_version_flag("--version", std::string(kVersion));
  app.add_option("--listen", flags.listen,
                 "Address to serve gRPC on, host:port; port 0 takes any free one")
      ->capture_default_str();
  CLI::Option* health_port =
      app.add_option(
             "--health-port,--health_port", flags.health_port,
             "Plaintext port with health only, for probes, on the host of --listen; 0 takes "
             "any, -1 none")
          ->capture_default_str()
          ->check(CLI::Range(-1, 65535));
  app.add_option(
         "--metrics-port,--metrics_port", flags.metrics_port,
         "HTTP port of /metrics for Prometheus, on the host of --listen; 0 takes any, -1 none")
      ->capture_default_str()
      ->check(CLI::Range(-1, 65535));
  app.add_option(
         "--health-address", flags.health_listen,
         "Plaintext HOST:PORT with health only, in place of --health-port; port 0 takes any")
      ->excludes(health_port);
  app.add_option("--tls-dir", flags.tls_folder,
                 "Folder with tls.crt, tls.key and ca.crt: mutual TLS 1.3 with every peer. Read "
                 "again when a file changes. The certificate must name this service's role");
  app.add_option("--tls-allow-roles", flags.tls_allow_roles,
                 "Roles of certificates that may call this service, separated by commas; "
                 "\"anonymous\" stands for callers without one")
      ->default_str(DefaultCallers(flags.role).ToString());
  app.add_flag("--allow-plaintext", flags.allow_plaintext,
               "Serve without TLS on an address that other machines reach");
  app.add_option(
      "--ready-file", flags.ready_file,
      "File to write {pid, address, health, metrics} to, as JSON, once the service serves");
  app.add_option("--drain-seconds", flags.drain_seconds,
                 "After SIGTERM, seconds that running work may take to end")
      ->capture_default_str()
      ->check(CLI::Range(0, 3600));
  app.add_option("--log-level", flags.log_level,
                 "Least severity logged: 0 info, 1 warning, 2 error")
      ->capture_default_str()
      ->check(CLI::Range(0, 2));
}

std::optional<int> ParseFlags(CLI::App& app, int argc, char** argv, ServiceFlags* flags) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool done = app.exit(error) == 0;
    if (!done) TellEnvironment(app, error.what());
    return done ? kExitDone : kExitUsage;
  }
  if (flags != nullptr) {
    if (flags->listen.rfind(':') == std::string::npos) {
      std::fprintf(stderr, "--listen: \"%s\" is not host:port\n", flags->listen.c_str());
      return kExitUsage;
    }
    absl::Status secured = LoadTls(*flags);
    secured.Update(CheckPlaintext(*flags));
    if (!secured.ok()) {
      std::fprintf(stderr, "%s\n", std::string(secured.message()).c_str());
      return kExitUsage;
    }
    if (!flags->health_listen.empty() && flags->health_listen.rfind(':') == std::string::npos) {
      std::fprintf(stderr, "--health-address: \"%s\" is not host:port\n",
                   flags->health_listen.c_str());
      return kExitUsage;
    }
    if (flags->health_port >= 0) flags->health_listen = WithPort(flags->listen, flags->health_port);
    if (flags->metrics_port >= 0)
      flags->metrics_listen = WithPort(flags->listen, flags->metrics_port);
  }
  return std::nullopt;
}

void InitProcess(const char* program, int log_level) {
  const sigset_t set = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // Debian builds Abseil with its assertions: every lock that gRPC takes would first be looked up
  // in one graph of the whole process, behind one spin lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = log_level;
  google::InitGoogleLogging(program);
}

void InitService(const char* program, const ServiceFlags& flags) {
  InitProcess(program, flags.log_level);
  if (flags.tls != nullptr || IsLoopback(flags.listen)) return;
  LOG(WARNING) << "--allow-plaintext: " << flags.listen
               << " is served without TLS: whoever reaches it may read and change everything, and "
                  "call every method";
}

int WaitForTermination() {
  const sigset_t set = TerminationSignals();
  int number = 0;
  // An endless wait by design: a service runs until it is told to end.
  while (sigwait(&set, &number) != 0) {
  }
  std::thread([set] {
    int second = 0;
    if (sigwait(&set, &second) == 0) _exit(kExitInterrupted);
  }).detach();
  return number;
}

absl::Status CheckPlaintext(const ServiceFlags& flags) {
  if (flags.tls != nullptr || flags.allow_plaintext || IsLoopback(flags.listen))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--listen: ", flags.listen,
                   " is reachable from other machines and nothing is encrypted; give --tls-dir, or "
                   "--allow-plaintext to serve all the same"));
}

ServerOptions ServerOptionsFrom(const ServiceFlags& flags) {
  return ServerOptions{.listen = flags.listen,
                       .health_listen = flags.health_listen,
                       .metrics_listen = flags.metrics_listen,
                       .tls = flags.tls};
}

absl::Status WriteReadyFile(const ServiceFlags& flags, const RpcServer& server) {
  const std::string& path = flags.ready_file;
  if (path.empty()) return absl::OkStatus();
  nlohmann::json json = {{"pid", getpid()}, {"address", WithPort(flags.listen, server.port())}};
  if (server.health_port() > 0)
    json["health"] = WithPort(flags.health_listen, server.health_port());
  if (server.metrics_port() > 0) json["metrics"] = WithPort(flags.listen, server.metrics_port());
  const std::string temp = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream out(temp, std::ios::trunc);
    out << json.dump() << "\n";
    out.flush();
    if (!out.good())
      return absl::UnavailableError(absl::StrCat("--ready-file: cannot write ", temp));
  }
  if (std::rename(temp.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("--ready-file: cannot rename ", temp, " to ", path));
  }
  return absl::OkStatus();
}

}  // namespace kvmesh::rpc
