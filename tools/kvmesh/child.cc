#include "tools/kvmesh/child.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"

namespace kvmesh::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr auto kPollInterval = std::chrono::milliseconds(20);

bool PortIsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return free;
}

// Of what stands in the file from `begin` on.
std::string LastLines(const std::string& path, int64_t begin, size_t count) {
  std::ifstream in(path);
  in.seekg(begin);
  std::deque<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
    if (lines.size() > count) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) absl::StrAppend(&text, "\n  ", line);
  return text;
}

// In the child, between fork and exec: only calls that are safe there.
[[noreturn]] void RunInChild(char* const* argv, const char* log_path, bool detached, pid_t parent) {
  setsid();  // the terminal's Ctrl-C goes to the parent alone, which then ends its children in
             // order
  if (!detached) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int in = open("/dev/null", O_RDONLY);                           // NOLINT
  const int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0644);  // NOLINT
  if (in < 0 || log < 0) _exit(127);
  dup2(in, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execv(argv[0], argv);
  _exit(127);
}

}  // namespace

std::string ProgramFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().string();
}

absl::StatusOr<std::vector<int>> FreePorts(int count) {
  std::random_device random;
  std::uniform_int_distribution<int> range(20000, 31999);
  std::set<int> ports;
  for (int attempt = 0; attempt < 20000 && static_cast<int>(ports.size()) < count; ++attempt) {
    const int port = range(random);
    if (PortIsFree(port)) ports.insert(port);
  }
  if (static_cast<int>(ports.size()) < count) {
    return absl::UnavailableError(
        absl::StrCat("no ", count, " free TCP ports between 20000 and 31999 on 127.0.0.1"));
  }
  return std::vector<int>(ports.begin(), ports.end());
}

absl::StatusOr<Child> Child::Start(Options options) {
  if (access(options.arguments[0].c_str(), X_OK) != 0) {
    return absl::UnavailableError(
        absl::StrCat(options.arguments[0], " is not there: build it first"));
  }
  std::vector<char*> argv;
  argv.reserve(options.arguments.size() + 1);
  for (std::string& argument : options.arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::error_code no_log_yet;
  const auto log_bytes = std::filesystem::file_size(options.log_path, no_log_yet);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::UnavailableError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0) RunInChild(argv.data(), options.log_path.c_str(), options.detached, parent);
  return Child(std::move(options), no_log_yet ? 0 : static_cast<int64_t>(log_bytes), pid);
}

bool Child::Running() {
  if (ended_) return false;
  if (waitpid(pid_, &wait_status_, WNOHANG) != pid_) return true;
  ended_ = true;
  return false;
}

std::string Child::HowItEnded() const {
  const std::string how = WIFSIGNALED(wait_status_)
                              ? absl::StrCat("was killed by signal ", WTERMSIG(wait_status_))
                              : absl::StrCat("ended with code ", WEXITSTATUS(wait_status_));
  return absl::StrCat(options_.name, " ", how, "; the end of ", options_.log_path, ":",
                      LastLines(options_.log_path, log_begin_, 8));
}

absl::Status Become(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  // The other program knows nothing of a thread here that waits for these signals.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(argv[0], argv.data());
  return absl::UnavailableError(
      absl::StrCat("cannot run ", arguments[0], ": ", std::strerror(errno)));
}

bool StopChildren(absl::Span<Child> children, absl::Duration grace) {
  for (Child& child : children) {
    if (child.Running()) kill(child.pid(), SIGTERM);
  }
  const auto end = SteadyClock::now() + absl::ToChronoNanoseconds(grace);
  bool clean = true;
  for (Child& child : children) {
    while (child.Running() && SteadyClock::now() < end) std::this_thread::sleep_for(kPollInterval);
    if (!child.Running()) continue;
    clean = false;
    kill(child.pid(), SIGKILL);
    for (int i = 0; i < 250 && child.Running(); ++i) std::this_thread::sleep_for(kPollInterval);
  }
  return clean;
}

bool RunsProgram(pid_t pid, const std::string& program) {
  const std::string folder = absl::StrCat("/proc/", pid);
  std::error_code error;
  // A zombie has no exe any more.
  std::string exe = std::filesystem::read_symlink(folder + "/exe", error).filename().string();
  if (error) return false;
  // The kernel marks a program that was replaced on disk since.
  const std::string deleted = " (deleted)";
  if (exe.size() > deleted.size() && exe.ends_with(deleted))
    exe.resize(exe.size() - deleted.size());
  return exe == program;
}

bool StopProcesses(const std::vector<pid_t>& pids, const std::string& program,
                   absl::Duration grace) {
  for (const pid_t pid : pids) {
    if (RunsProgram(pid, program)) kill(pid, SIGTERM);
  }
  const auto end = SteadyClock::now() + absl::ToChronoNanoseconds(grace);
  bool clean = true;
  for (const pid_t pid : pids) {
    while (RunsProgram(pid, program) && SteadyClock::now() < end) {
      std::this_thread::sleep_for(kPollInterval);
    }
    if (!RunsProgram(pid, program)) continue;
    clean = false;
    kill(pid, SIGKILL);
    for (int n = 0; n < 250 && RunsProgram(pid, program); ++n) {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  return clean;
}

absl::StatusOr<uint64_t> ResidentBytes(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/statm"));
  uint64_t total = 0;
  uint64_t resident = 0;
  if (!(in >> total >> resident)) return absl::NotFoundError(absl::StrCat("no process ", pid));
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace kvmesh::cli
