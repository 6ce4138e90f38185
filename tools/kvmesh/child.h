// Processes on this machine: starting, watching and ending them.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace kvmesh::cli {

// The folder of this program, where the services lie as well.
std::string ProgramFolder();

// `count` different TCP ports of 127.0.0.1 that are free now and lie below the range of outgoing
// connections. Unavailable: not found.
absl::StatusOr<std::vector<int>> FreePorts(int count);

// A process that this one has started. Not thread-safe; used from the thread that started it, which
// must live as long as the process (the kernel ties the death of an attached child to that thread).
class Child {
 public:
  struct Options {
    std::string name;
    std::vector<std::string> arguments;  // the program's path first
    std::string log_path;                // its stdout and stderr
    bool detached = false;               // outlives this process
  };

  // Unavailable: it cannot be started.
  static absl::StatusOr<Child> Start(Options options);

  const std::string& name() const { return options_.name; }
  const Options& options() const { return options_; }
  pid_t pid() const { return pid_; }

  // False once it has ended; reaps it.
  bool Running();
  bool ended_well() const { return ended_ && wait_status_ == 0; }
  // "ended with code 1" or "was killed by signal 9", with the last lines of its log.
  std::string HowItEnded() const;

 private:
  Child(Options options, int64_t log_begin, pid_t pid)
      : options_(std::move(options)), log_begin_(log_begin), pid_(pid) {}

  Options options_;
  int64_t log_begin_ = 0;  // bytes that earlier processes have left in the log
  pid_t pid_ = 0;
  bool ended_ = false;
  int wait_status_ = 0;
};

// Replaces this process by another program (its path first). Returns only on failure: Unavailable.
absl::Status Become(std::vector<std::string> arguments);

// SIGTERM to all that run, SIGKILL to those that still do after `grace`. True: none had to be
// killed.
bool StopChildren(absl::Span<Child> children, absl::Duration grace);

// Whether `pid` runs (a zombie does not) and is a program of that file name: a number that went to
// another program since must not be signalled.
bool RunsProgram(pid_t pid, const std::string& program);

// The same as StopChildren for processes of another parent, all of one program.
bool StopProcesses(const std::vector<pid_t>& pids, const std::string& program,
                   absl::Duration grace);

// Resident memory in bytes. NotFound: no such process.
absl::StatusOr<uint64_t> ResidentBytes(pid_t pid);

}  // namespace kvmesh::cli
