// Put and Get of one large slab beside the pump. All take turns in every round, so that what else
// the machine does hits all alike; ratios are taken within a round, and the median round counts.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

#include "absl/strings/str_cat.h"
#include "tests/bench/blob/bench_parts.h"
#include "tools/kvmesh/pump.h"

namespace kvmesh::bench {
namespace {

// One a round.
struct Costs {
  std::vector<double> seconds;
  std::vector<double> cpu_seconds;  // client and server
};

void Measure(const ServerProcess& server, Costs* costs, const std::function<void()>& work) {
  const double cpu = OwnCpuSeconds() + server.CpuSeconds();
  const double start = Now();
  work();
  costs->seconds.push_back(Now() - start);
  costs->cpu_seconds.push_back(OwnCpuSeconds() + server.CpuSeconds() - cpu);
}

double MedianRatio(const std::vector<double>& over, const std::vector<double>& under) {
  std::vector<double> ratios;
  ratios.reserve(over.size());
  for (size_t i = 0; i < over.size(); ++i) ratios.push_back(over[i] / under[i]);
  return Median(ratios);
}

void Print(const std::string& what, const Costs& costs, const Costs& pump, uint64_t bytes) {
  const double mib = static_cast<double>(bytes) / kMiB;
  std::printf("%-14s %6.0f MiB/s, %.2f of the pump   CPU %.2f s/GiB, %.2f of the pump\n",
              what.c_str(), mib / Median(costs.seconds), MedianRatio(pump.seconds, costs.seconds),
              Median(costs.cpu_seconds) * 1024 / mib,
              MedianRatio(costs.cpu_seconds, pump.cpu_seconds));
}

// What the medium alone costs: the same bytes written by this process and synced.
struct MediumCost {
  std::vector<double> write_seconds;
  std::vector<double> sync_seconds;
};

void WriteFile(const std::string& path, const LargeSlab& slab, MediumCost* cost) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const double start = Now();
  bool written = fd >= 0 && fallocate(fd, 0, 0, static_cast<off_t>(slab.size())) == 0;
  for (absl::string_view part : slab.parts()) {
    while (written && !part.empty()) {
      const ssize_t step = write(fd, part.data(), std::min<size_t>(part.size(), kMiB));
      written = step > 0;
      if (written) part.remove_prefix(static_cast<size_t>(step));
    }
  }
  const double synced = Now();
  if (!written || fdatasync(fd) != 0) Must(absl::UnavailableError("cannot write " + path));
  cost->write_seconds.push_back(synced - start);
  cost->sync_seconds.push_back(Now() - synced);
  close(fd);
  unlink(path.c_str());
}

}  // namespace

void BenchThroughput(const std::string& tier, int rounds, const ServerProcess& pump,
                     const LargeSlab& slab) {
  const std::string chunk(kMiB, 'c');
  const Folder folder(tier);
  const auto blob = StartBlob(tier, folder);
  const auto blob_channel = Connect(blob->address());
  const auto pump_channel = Connect(pump.address());
  Costs to, from, put, get;
  MediumCost medium;
  for (int round = 0; round <= rounds; ++round) {
    if (round == 1) to = from = put = get = {};  // the first only warms up
    Measure(pump, &to, [&] { Must(PumpTo(pump_channel, chunk, slab.size())); });
    // First, so that pages that the machine must fetch from its host are not counted against puts.
    if (tier != "ram") WriteFile(folder.path() + "/plain", slab, &medium);
    Measure(*blob, &put, [&] { Put(blob_channel, slab); });
    Measure(pump, &from, [&] { Must(PumpFrom(pump_channel, slab.size())); });
    Measure(*blob, &get, [&] { Get(blob_channel, slab); });
    Delete(blob_channel, slab);
  }
  Print("pump to", to, to, slab.size());
  Print(tier + " put", put, to, slab.size());
  if (tier != "ram") {
    const double mib = static_cast<double>(slab.size()) / kMiB;
    std::printf("%-14s %6.0f MiB/s written, %.0f MiB/s with the sync, which takes %.3f s\n",
                " its medium", mib / Median(medium.write_seconds),
                mib / (Median(medium.write_seconds) + Median(medium.sync_seconds)),
                Median(medium.sync_seconds));
  }
  Print("pump from", from, from, slab.size());
  Print(tier + " get", get, from, slab.size());
}

}  // namespace kvmesh::bench
