// Preloaded: counts the bytes of copies of at least 1 KiB within the process (smaller ones are no
// copies of payload), and writes the sum to the file named by KVMESH_COPY_COUNT at each SIGUSR1, if
// there is one.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr size_t kLeast = 1024;

std::atomic<unsigned long> copied{0};
void* (*real_memmove)(void*, const void*, size_t) = nullptr;

void* Copy(void* to, const void* from, size_t size) {
  if (size >= kLeast) copied.fetch_add(size, std::memory_order_relaxed);
  if (real_memmove != nullptr) return real_memmove(to, from, size);
  // Before the loader has resolved it.
  auto* out = static_cast<volatile char*>(to);
  const auto* in = static_cast<const volatile char*>(from);
  if (out < in) {
    for (size_t i = 0; i < size; ++i) out[i] = in[i];
  } else {
    for (size_t i = size; i > 0; --i) out[i - 1] = in[i - 1];
  }
  return to;
}

void WriteCount(int) {
  const char* path = getenv("KVMESH_COPY_COUNT");
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  char text[32];
  const int length = snprintf(text, sizeof(text), "%lu\n", copied.load());
  if (write(fd, text, static_cast<size_t>(length)) < 0) _exit(1);
  close(fd);
}

__attribute__((constructor)) void Start() {
  real_memmove =
      reinterpret_cast<void* (*)(void*, const void*, size_t)>(dlsym(RTLD_NEXT, "memmove"));
  if (getenv("KVMESH_COPY_COUNT") != nullptr) signal(SIGUSR1, WriteCount);
}

}  // namespace

extern "C" {
unsigned long kvmesh_copied_bytes() {
  return copied.load();
}
void* memcpy(void* to, const void* from, size_t size) {
  return Copy(to, from, size);
}
void* memmove(void* to, const void* from, size_t size) {
  return Copy(to, from, size);
}
}
