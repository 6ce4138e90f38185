// User-space copies of a slab's bytes, counted in both processes by a preloaded memcpy.
#include <dlfcn.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/bench/blob/bench_parts.h"

namespace kvmesh::bench {
namespace {

std::string Preload() {
  return "LD_PRELOAD=" + BinDir() + "/libkvmesh_copy_count.so";
}

uint64_t CopiedBy(const ServerProcess& server, const std::string& file) {
  std::filesystem::remove(file);
  kill(server.pid(), SIGUSR1);
  uint64_t count = 0;
  for (int i = 0; i < 1000 && count == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::ifstream(file) >> count;
  }
  return count;
}

// Of this process, which was started with the counter.
uint64_t CopiedHere() {
  const auto count =
      reinterpret_cast<unsigned long (*)()>(dlsym(RTLD_DEFAULT, "kvmesh_copied_bytes"));
  if (count == nullptr) Must(absl::InternalError("the copy counter is not loaded"));
  return count();
}

}  // namespace

void CountClientCopies(const std::string& address, uint64_t slab_bytes,
                       const std::string& ready_file) {
  const auto slab = LargeSlab::Make(1, slab_bytes);
  const auto channel = Connect(address);
  const uint64_t start = CopiedHere();
  Put(channel, *slab);
  const uint64_t put = CopiedHere();
  Get(channel, *slab);
  const uint64_t get = CopiedHere();
  std::ofstream(ready_file + ".tmp") << nlohmann::json{{"put", put - start}, {"get", get - put}};
  std::filesystem::rename(ready_file + ".tmp", ready_file);
}

void BenchCopies(const std::string& tier, uint64_t slab_bytes) {
  const Folder folder(tier);
  const std::string count_file = folder.path() + "/copied";
  const auto blob = StartBlob(tier, folder, {Preload(), "KVMESH_COPY_COUNT=" + count_file});
  const auto slab = LargeSlab::Make(1, slab_bytes);
  const auto channel = Connect(blob->address());
  const uint64_t start = CopiedBy(*blob, count_file);
  Put(channel, *slab);
  const uint64_t put = CopiedBy(*blob, count_file);
  Get(channel, *slab);
  const uint64_t get = CopiedBy(*blob, count_file);
  Delete(channel, *slab);
  const std::string ready = folder.path() + "/client.json";
  const ServerProcess client({BinDir() + "/blob_bench", "--count-copies", blob->address(),
                              "--slab-mib", std::to_string(slab_bytes / kMiB), "--result", ready},
                             ready, {Preload()});
  const auto times = [&](uint64_t copied) {
    return static_cast<double>(copied) / static_cast<double>(slab_bytes);
  };
  std::printf(
      "%-9s user-space copies of each byte: put %.2f by the client + %.2f by the store, "
      "get %.2f + %.2f\n",
      tier.c_str(), times(client.ready()["put"].get<uint64_t>()), times(put - start),
      times(client.ready()["get"].get<uint64_t>()), times(get - put));
}

}  // namespace kvmesh::bench
