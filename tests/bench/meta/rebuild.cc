// An arbiter that begins with nothing learns a store's rows; then the store comes back empty.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <thread>

#include "tests/bench/meta/bench_parts.h"
#include "tests/bench/meta/bench_store.h"
#include "tests/bench/meta/load.h"

namespace kvmesh::bench {
namespace {

// Beside the lookups: how long an action takes, again and again.
class Probe {
 public:
  explicit Probe(std::function<void()> action)
      : thread_([this, action = std::move(action)] {
          while (!stop_.load()) {
            const double start = Now();
            action();
            latencies_us_.push_back((Now() - start) * 1e6);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
        }) {}
  std::vector<double> Stop() {
    stop_ = true;
    thread_.join();
    return std::move(latencies_us_);
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<double> latencies_us_;
  std::thread thread_;
};

void Print(const char* what, const ServerProcess& meta, double cpu_before, LoadResult lookups,
           std::vector<double> commands, std::vector<double> naps) {
  std::printf(
      "%s: %.1f s, %.1f s of the arbiter's CPU; meanwhile %zu lookups: p50 %.0f us, p99 %.0f us, "
      "most %.0f us; %zu commands: p50 %.0f us, p99 %.0f us, most %.0f us; a thread of the bench "
      "that "
      "sleeps 1 ms: p99 %.0f us, most %.0f us\n",
      what, lookups.seconds, meta.CpuSeconds() - cpu_before, lookups.latencies_us.size(),
      Percentile(lookups.latencies_us, 0.5), Percentile(lookups.latencies_us, 0.99),
      Percentile(lookups.latencies_us, 1), commands.size(), Percentile(commands, 0.5),
      Percentile(commands, 0.99), Percentile(commands, 1), Percentile(naps, 0.99),
      Percentile(naps, 1));
}

}  // namespace

void BenchRebuild(const PartOptions& options) {
  const cli::ChatCorpus corpus(options.rows, 1);
  const auto requests = RequestsOf(corpus, options.prompt_bytes, 4096);
  const auto meta = StartMeta();
  const auto stub = kvmesh::v1::MetaService::NewStub(Connect(meta->address()));
  const auto probe_stub = kvmesh::v1::MetaService::NewStub(Connect(meta->address()));
  const StartCall look = [&](size_t, auto* context, auto* request, auto* response, auto done) {
    stub->async()->Lookup(context, request, response, std::move(done));
  };
  BenchStore store("disk", 1ULL << 60);
  const auto run = [&](const char* what, uint32_t rows) {
    std::atomic<bool> done{false};
    const double cpu = meta->CpuSeconds();
    Probe commands([&probe_stub] { StatsOf(*probe_stub); });
    // How long the machine lets a thread wait that needs nothing else.
    Probe naps([] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
    std::thread attaching([&] {
      store.Attach(Connect(meta->address()), rows, [&](uint32_t i) { return corpus.Row(i); });
      AwaitTrue("the rows", [&] { return Serves(*stub, rows); });
      done = true;
    });
    LoadResult lookups = AtRate(
        look, 1, options.lookups_per_second / 5, [&done] { return done.load(); }, requests,
        /*must_find=*/false);
    attaching.join();
    Print(what, *meta, cpu, std::move(lookups), commands.Stop(), naps.Stop());
  };
  std::printf("%u rows of two slabs in one store\n", options.rows);
  run("rebuild from the inventory", options.rows);
  std::printf("  %.2f GB resident\n", static_cast<double>(meta->ResidentBytes()) * 1e-9);
  run("the store comes back with all of it", options.rows);
  run("the store comes back empty", 0);
}

}  // namespace kvmesh::bench
