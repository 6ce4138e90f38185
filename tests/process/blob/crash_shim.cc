// Preloaded into a program under test: sends SIGKILL to its own process right before the operation
// on a file whose number KVMESH_CRASH_AT names, counted from 1. Counted are the operations that
// change a medium.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdlib>

namespace {

void Count() {
  static std::atomic<long> count{0};
  static const long crash_at = [] {
    const char* value = getenv("KVMESH_CRASH_AT");
    return value == nullptr ? -1L : atol(value);
  }();
  if (++count == crash_at) kill(getpid(), SIGKILL);
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = static_cast<mode_t>(va_arg(arguments, int));
    va_end(arguments);
  }
  static const auto real = Real<int (*)(const char*, int, ...)>("open");
  if ((flags & O_EXCL) != 0) Count();
  return real(path, flags, mode);
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
  static const auto real = Real<int (*)(int, int, off_t, off_t)>("fallocate");
  Count();
  return real(fd, mode, offset, length);
}

ssize_t pwritev(int fd, const iovec* vectors, int count, off_t offset) {
  static const auto real = Real<ssize_t (*)(int, const iovec*, int, off_t)>("pwritev");
  Count();
  return real(fd, vectors, count, offset);
}

int fdatasync(int fd) {
  static const auto real = Real<int (*)(int)>("fdatasync");
  Count();
  return real(fd);
}

int fsync(int fd) {
  static const auto real = Real<int (*)(int)>("fsync");
  Count();
  return real(fd);
}

int link(const char* from, const char* to) {
  static const auto real = Real<int (*)(const char*, const char*)>("link");
  Count();
  return real(from, to);
}

int unlink(const char* path) {
  static const auto real = Real<int (*)(const char*)>("unlink");
  Count();
  return real(path);
}

int rename(const char* from, const char* to) {
  static const auto real = Real<int (*)(const char*, const char*)>("rename");
  Count();
  return real(from, to);
}
}
