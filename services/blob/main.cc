// kvmesh-blob: one storage tier as a process.
#include <glog/logging.h>
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

#include "common/base/cpu_count.h"
#include "common/rpc/process.h"
#include "services/blob/grpc/blob_server.h"

namespace kvmesh::blob {
namespace {

struct Flags {
  rpc::ServiceFlags service;
  BlobServerOptions blob;
  double stall_seconds = 30;
};

void AddFlags(CLI::App& app, Flags& flags) {
  flags.service.role = rpc::Role::kBlob;
  rpc::AddServiceFlags(app, flags.service);
  app.add_option("--tier", flags.blob.service.tier,
                 "Medium: ram (this process's memory), ram_file (files in shared memory), disk")
      ->required()
      ->check(CLI::IsMember({"ram", "ram_file", "disk"}));
  app.add_option("--dir", flags.blob.folder,
                 "Data directory of ram_file and disk; one process uses it at a time");
  app.add_option("--budget-bytes", flags.blob.store.budget_bytes,
                 "Most bytes that slabs, open puts and quarantined slabs may take together")
      ->required()
      ->check(CLI::Range(uint64_t{4096}, uint64_t{1} << 60));
  app.add_option("--low-watermark", flags.blob.store.low_watermark,
                 "Share of the budget that start-up trims to, least recently used first")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--transfers-max", flags.blob.store.transfers_max,
                 "Puts and gets that run at once; more are refused with a retry delay")
      ->capture_default_str()
      ->check(CLI::Range(1U, 4096U));
  app.add_option("--io-threads", flags.blob.service.io_threads,
                 "Threads that read and write the medium")
      ->capture_default_str()
      ->check(CLI::Range(1U, 256U));
  app.add_option("--stall-seconds", flags.stall_seconds,
                 "A transfer whose client neither sends nor reads for so long is cut off")
      ->capture_default_str()
      ->check(CLI::Range(0.05, 3600.0));
  app.add_option("--meta", flags.blob.meta.arbiter,
                 "Address of the arbiter, host:port; without it the store is on its own");
  app.add_option("--advertise", flags.blob.advertise,
                 "How clients reach this store, host:port; by default the listening address, or "
                 "the node's name when that is every address");
  app.add_option("--node", flags.blob.meta.facts.node, "Name of this machine, told the arbiter")
      ->capture_default_str();
  app.add_option("--verify-bytes-per-second", flags.blob.service.verify_bytes_per_second,
                 "Rate at which Verify reads")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 40));
}

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return rpc::kExitUsage;
    case absl::StatusCode::kUnavailable:
      return rpc::kExitUnavailable;
    case absl::StatusCode::kResourceExhausted:
      return rpc::kExitRefused;
    default:
      return rpc::kExitFailed;
  }
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "kvmesh-blob: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// The slices of received messages come and go by the megabyte, on several threads. By default their
// pages would be given back to the system each time, to be cleared and mapped again for the next.
void KeepFreedMemory() {
  constexpr int kKeptBytes = 16 << 20;  // an arena
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, kKeptBytes);
  mallopt(M_TRIM_THRESHOLD, kKeptBytes);
  mallopt(M_TOP_PAD, 256 << 10);
}

int Main(int argc, char** argv) {
  KeepFreedMemory();
  Flags flags;
  flags.blob.meta.facts.node = HostName();
  CLI::App app("kvmesh-blob: stores slabs on one medium, within a budget");
  AddFlags(app, flags);
  if (const auto code = rpc::ParseFlags(app, argc, argv, &flags.service)) return *code;
  rpc::InitService(argv[0], flags.service);

  flags.blob.server = rpc::ServerOptionsFrom(flags.service);
  flags.blob.store.scan_threads = UsableCpuCount();
  flags.blob.store.now_s = WallClockSeconds();
  flags.blob.service.stall_timeout = absl::Seconds(flags.stall_seconds);
  const std::unique_ptr<FileSystem> files = MakePosixFileSystem();
  const MonotonicClock clock;
  auto blob = BlobServer::Start(flags.blob, *files, clock);
  if (!blob.ok()) return Fail(blob.status());
  malloc_trim(0);  // what looking through all slabs took
  if (const absl::Status ready = rpc::WriteReadyFile(flags.service, (*blob)->server());
      !ready.ok()) {
    return Fail(ready);
  }
  LOG(INFO) << "serving tier " << flags.blob.service.tier << " on port " << (*blob)->port();
  const int signal = rpc::WaitForTermination();
  LOG(INFO) << "signal " << signal << ": draining";
  (*blob)->Shutdown(absl::Seconds(flags.service.drain_seconds));
  return rpc::kExitDone;
}

}  // namespace
}  // namespace kvmesh::blob

int main(int argc, char** argv) {
  return kvmesh::blob::Main(argc, argv);
}
