// kvmesh-blob beside a plain gRPC pump, in one run: throughput, CPU, copies, small slabs, start-up.
//
//   blob_bench [--slab-mib N] [--rounds N] [--small N] [--scan N] [--tiers T,…] [--commit TEXT]
#include <CLI/CLI.hpp>

#include <cstdio>
#include <thread>

#include "tests/bench/blob/bench_parts.h"
#include "tools/kvmesh/pump.h"

namespace kvmesh::bench {
namespace {

struct Flags {
  uint64_t slab_mib = 256;
  int rounds = 9;
  int small = 10000;
  int scan = 100000;
  std::vector<std::string> tiers = {"ram", "ram_file", "disk"};
  std::string commit = "unknown";
  // Of the processes that the bench starts.
  std::string serve_pump;
  std::string count_copies;
  std::string result;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--slab-mib", flags.slab_mib, "Size of the large slab; 0: skip")
      ->capture_default_str();
  app.add_option("--rounds", flags.rounds, "Rounds, of which the median counts")
      ->capture_default_str();
  app.add_option("--small", flags.small, "Small slabs to put; 0: skip")->capture_default_str();
  app.add_option("--scan", flags.scan, "Slabs to find at start-up; 0: skip")->capture_default_str();
  app.add_option("--tiers", flags.tiers, "Tiers to measure")->delimiter(',');
  app.add_option("--commit", flags.commit, "Printed with the figures");
  app.add_option("--serve-pump", flags.serve_pump, "Serve the pump; its address goes to this file");
  app.add_option("--count-copies", flags.count_copies, "Count a client's copies; a store's address")
      ->needs(app.add_option("--result", flags.result, "The counts go to this file"));
}

void BenchLarge(const Flags& flags) {
  const auto slab = LargeSlab::Make(1, flags.slab_mib * kMiB);
  {
    const Folder folder("pump");
    const std::string ready = folder.path() + "/pump.json";
    const ServerProcess pump({BinDir() + "/blob_bench", "--serve-pump", ready}, ready);
    for (const std::string& tier : flags.tiers) BenchThroughput(tier, flags.rounds, pump, *slab);
  }
  for (const std::string& tier : flags.tiers) BenchCopies(tier, flags.slab_mib * kMiB);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("blob_bench");
  AddFlags(app, flags);
  CLI11_PARSE(app, argc, argv);
  if (!flags.serve_pump.empty()) {
    Must(ServePump(flags.serve_pump));
    return 1;
  }
  if (!flags.count_copies.empty()) {
    CountClientCopies(flags.count_copies, flags.slab_mib * kMiB, flags.result);
    return 0;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("blob_bench, commit %s, %u processors, %d rounds of %lu MiB\n", flags.commit.c_str(),
              std::thread::hardware_concurrency(), flags.rounds, flags.slab_mib);
  if (flags.slab_mib > 0) BenchLarge(flags);
  if (flags.small > 0) {
    for (const std::string& tier : flags.tiers) BenchSmall(tier, flags.small);
  }
  if (flags.scan > 0) BenchScan(flags.scan);
  return 0;
}

}  // namespace
}  // namespace kvmesh::bench

int main(int argc, char** argv) {
  return kvmesh::bench::Main(argc, argv);
}
