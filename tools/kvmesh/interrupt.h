// Ctrl-C and SIGTERM as an event: the first one asks whatever runs to stop, the second ends the
// process at once.
#pragma once

#include <functional>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace kvmesh::cli {

// Thread-safe. One per process, installed before any other thread starts; lives until the process
// ends.
class Interrupt {
 public:
  // Blocks both signals in this and all later threads and starts the thread that waits for them.
  Interrupt();

  bool requested();

  // Waits until a signal has come or `timeout` has passed; true: it has come.
  bool WaitFor(absl::Duration timeout);

  // While a Scope lives, the first signal also runs `action`, on the waiting thread.
  class Scope {
   public:
    Scope(Interrupt& interrupt, std::function<void()> action);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Interrupt& interrupt_;
  };

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  bool requested_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> action_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::cli
