#include "tools/kvmesh/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {
namespace {

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);  // NOLINT: a closed pipe is a failed write, not a death
  std::thread([this] { Run(); }).detach();
}

void Interrupt::Run() {
  const sigset_t set = Signals();
  int number = 0;
  // Endless by design: the thread lives as long as the process.
  while (sigwait(&set, &number) != 0) {
  }
  {
    MutexLock lock(&mutex_);
    requested_ = true;
    // Under the lock, so that a Scope never ends while its action runs. Actions only set flags and
    // cancel calls.
    if (action_) action_();
    changed_.NotifyAll();
  }
  while (sigwait(&set, &number) != 0) {
  }
  _exit(kInterrupted);
}

bool Interrupt::requested() {
  MutexLock lock(&mutex_);
  return requested_;
}

bool Interrupt::WaitFor(absl::Duration timeout) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  MutexLock lock(&mutex_);
  while (!requested_) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    changed_.WaitFor(&mutex_, absl::FromChrono(left));
  }
  return true;
}

Interrupt::Scope::Scope(Interrupt& interrupt, std::function<void()> action)
    : interrupt_(interrupt) {
  MutexLock lock(&interrupt_.mutex_);
  if (interrupt_.requested_) {
    action();
  } else {
    interrupt_.action_ = std::move(action);
  }
}

Interrupt::Scope::~Scope() {
  MutexLock lock(&interrupt_.mutex_);
  interrupt_.action_ = nullptr;
}

}  // namespace kvmesh::cli
