#include "tests/process/checkpoints/server_process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/test_data.h"

namespace kvmesh::process_testing {
namespace {

// The letter of /proc/PID/stat: it stands behind the name, which may hold anything but ')'.
char StateOf(pid_t pid) {
  const std::string stat = testing::ReadWholeFile(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= stat.size() ? '?' : stat[name_end + 2];
}

}  // namespace

ServerProcess::ServerProcess(std::string name, std::vector<std::string> command)
    : name_(std::move(name)), command_(std::move(command)) {}

void ServerProcess::Start() {
  const std::string ready = dir_.path() + "/ready";
  std::filesystem::remove(ready);
  std::vector<std::string> command = command_;
  command.insert(command.end(),
                 {"--listen", address_, "--metrics-port", "0", "--ready-file", ready});
  process_ = std::make_unique<Process>(command, dir_);
  const auto ended = [this] { return process_->Wait(absl::ZeroDuration()) != -1; };
  WaitUntil([&] { return std::filesystem::exists(ready) || ended(); });
  ASSERT_TRUE(std::filesystem::exists(ready)) << name_ << ": " << Log();
  const cli::Json told = cli::Json::parse(testing::ReadWholeFile(ready));
  address_ = told["address"].get<std::string>();
  metrics_ = told["metrics"].get<std::string>();
}

void ServerProcess::Kill() {
  process_->Signal(SIGKILL);
  EXPECT_EQ(process_->Wait(), 128 + SIGKILL) << name_;
  process_.reset();
}

void ServerProcess::Terminate() {
  process_->Signal(SIGTERM);
  AwaitEnd();
}

void ServerProcess::AwaitEnd() {
  EXPECT_EQ(process_->Wait(), 0) << name_ << " does not end well: " << Log();
  process_.reset();
}

void ServerProcess::Freeze() {
  process_->Signal(SIGSTOP);
  EXPECT_TRUE(WaitUntil([this] { return StateOf(process_->pid()) == 'T'; })) << name_;
}

void ServerProcess::Thaw() {
  process_->Signal(SIGCONT);
}

double ServerProcess::Metric(const std::string& prefix) const {
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(Metrics(metrics_), '\n')) {
    double value = 0;
    if (absl::StartsWith(line, prefix) &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      sum += value;
    }
  }
  return sum;
}

}  // namespace kvmesh::process_testing
