#include "tests/bench/blob/server_process.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace kvmesh::bench {

ServerProcess::ServerProcess(const std::vector<std::string>& command, const std::string& ready_file,
                             const std::vector<std::string>& environment) {
  std::filesystem::remove(ready_file);
  const auto start = std::chrono::steady_clock::now();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // also when the bench is cut off
    for (const std::string& variable : environment) putenv(strdup(variable.c_str()));
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(strdup(argument.c_str()));
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  while (!std::filesystem::exists(ready_file)) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_ ||
        std::chrono::steady_clock::now() - start > std::chrono::minutes(5)) {
      std::fprintf(stderr, "%s did not start\n", command[0].c_str());
      std::exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ready_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::ifstream file(ready_file);
  ready_ = nlohmann::json::parse(file);
}

ServerProcess::~ServerProcess() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

double ServerProcess::CpuSeconds() const {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

uint64_t ServerProcess::ResidentBytes() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

double OwnCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace kvmesh::bench
