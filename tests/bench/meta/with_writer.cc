// Latency of lookups while a writer reserves, publishes and evicts; and that of an echo by another
// process meanwhile, which the writer holds up only by what it takes of the machine.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "common/base/limits.h"
#include "echo/echo.grpc.pb.h"
#include "tests/bench/meta/bench_parts.h"
#include "tests/bench/meta/bench_store.h"
#include "tests/bench/meta/load.h"

namespace kvmesh::bench {
namespace {

// The store that is written to holds so many rows; each cycle then evicts one, by and by.
constexpr uint32_t kWrittenRows = 2000;
constexpr uint64_t kRowBytes = 2 * (4ULL << 20);

// Cycles begin at their times. Each row is new.
class Writer {
 public:
  Writer(const std::string& address, double per_second)
      : stub_(kvmesh::v1::MetaService::NewStub(Connect(address))),
        store_("ram", kWrittenRows * kRowBytes),
        corpus_(400'000, 2),
        per_second_(per_second) {
    store_.Attach(Connect(address), 0, nullptr);
  }
  ~Writer() { Stop(); }

  void Start() {
    stop_ = false;
    thread_ = std::thread([this] { Run(); });
  }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    AwaitTrue("the last write", [this] { return under_way_.load() == 0; });
  }
  uint64_t published() const { return published_.load(); }
  uint64_t evicted() const { return store_.deletes() / 2; }

 private:
  struct Cycle {
    grpc::ClientContext context;
    kvmesh::v1::ReserveRequest request;
    kvmesh::v1::ReserveResponse response;
    meta::RowOpened row;
  };

  void Run() {
    const double started = Now();
    for (uint64_t i = 0; !stop_.load(); ++i) {
      const double early = started + static_cast<double>(i) / per_second_ - Now();
      if (early > 0) std::this_thread::sleep_for(std::chrono::duration<double>(early));
      Begin();
    }
  }

  void Begin() {
    auto cycle = std::make_shared<Cycle>();
    cycle->row = corpus_.Row(next_++ % corpus_.size());
    kvmesh::v1::ReserveRequest& request = cycle->request;
    request.set_request_id(std::string(RandomId<InstanceId>().bytes()));
    request.set_kind(kvmesh::v1::RESERVATION_KIND_ROW);
    *request.mutable_namespace_() = CorpusNamespace();
    request.set_key(cycle->row.key.ToHex());
    request.set_model_layers(cycle->row.slabs.back().layers.end);
    for (const meta::RowSlab& slab : cycle->row.slabs) {
      kvmesh::v1::RangeBytes& range = *request.add_ranges();
      range.mutable_layers()->set_begin(slab.layers.begin);
      range.mutable_layers()->set_end(slab.layers.end);
      range.set_size_bytes(slab.size_bytes);
    }
    request.set_reason(kvmesh::v1::SAVE_REASON_CONTINUED);
    request.set_tier("ram");
    cycle->context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    under_way_.fetch_add(1);
    stub_->async()->Reserve(&cycle->context, &cycle->request, &cycle->response,
                            [this, cycle](const grpc::Status& status) {
                              if (!status.ok()) Fail("Reserve: " + status.error_message());
                              const auto write_id =
                                  WriteId::FromBytes(cycle->response.write_id(), "write_id");
                              if (!write_id.ok()) Fail("Reserve answers without a write_id");
                              store_.Announce(std::move(cycle->row), *write_id);
                              published_.fetch_add(1);
                              under_way_.fetch_sub(1);
                            });
  }

  const std::unique_ptr<kvmesh::v1::MetaService::Stub> stub_;
  BenchStore store_;
  const cli::ChatCorpus corpus_;
  const double per_second_;
  uint32_t next_ = 0;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> under_way_{0};
  std::atomic<uint64_t> published_{0};
};

struct Latencies {
  std::vector<double> p50, p99;  // of each round, in microseconds
};

}  // namespace

void BenchWithWriter(const PartOptions& options) {
  const cli::ChatCorpus corpus(options.rows, 1);
  const auto requests = RequestsOf(corpus, options.prompt_bytes, 4096);
  const auto meta = StartMeta();
  const auto echo = StartEcho();
  BenchStore store("disk", 1ULL << 60);
  store.Attach(Connect(meta->address()), corpus.size(), [&](uint32_t i) { return corpus.Row(i); });
  const auto stub = kvmesh::v1::MetaService::NewStub(Connect(meta->address()));
  const auto echo_stub = v1::EchoService::NewStub(Connect(echo->address()));
  AwaitTrue("the rows", [&] { return Serves(*stub, options.rows); });
  Writer writer(meta->address(), options.cycles_per_second);
  const StartCall look = [&](size_t, auto* context, auto* request, auto* response, auto done) {
    stub->async()->Lookup(context, request, response, std::move(done));
  };
  const StartCall bare = [&](size_t, auto* context, auto* request, auto* response, auto done) {
    echo_stub->async()->Echo(context, request, response, std::move(done));
  };
  const auto measure = [&](const StartCall& call, Latencies* into) {
    const double end = Now() + options.seconds;
    LoadResult result = AtRate(
        call, 1, options.lookups_per_second, [end] { return Now() >= end; }, requests);
    into->p50.push_back(Percentile(result.latencies_us, 0.5));
    into->p99.push_back(Percentile(result.latencies_us, 0.99));
  };
  writer.Start();  // until its store is full
  AwaitTrue("the first evictions", [&] { return writer.evicted() > 0; });
  writer.Stop();
  Latencies lookup_idle, lookup_busy, echo_idle, echo_busy;
  std::vector<double> cycles, evictions;
  for (int round = 0; round <= options.rounds; ++round) {
    if (round == 1) lookup_idle = lookup_busy = echo_idle = echo_busy = {};  // 0 only warms up
    measure(bare, &echo_idle);
    measure(look, &lookup_idle);
    const uint64_t published = writer.published();
    const uint64_t evicted = writer.evicted();
    const double started = Now();
    writer.Start();
    measure(look, &lookup_busy);
    measure(bare, &echo_busy);
    writer.Stop();
    if (round == 0) continue;
    cycles.push_back(static_cast<double>(writer.published() - published) / (Now() - started));
    evictions.push_back(static_cast<double>(writer.evicted() - evicted) / (Now() - started));
  }
  const auto print = [](const char* what, const Latencies& idle, const Latencies& busy) {
    std::vector<double> ratios;
    for (size_t i = 0; i < idle.p99.size(); ++i) ratios.push_back(busy.p99[i] / idle.p99[i]);
    std::printf(
        "  %s: p50 %.0f us, p99 %.0f us; without: p50 %.0f us, p99 %.0f us; ratio of p99 %.2f\n",
        what, Median(busy.p50), Median(busy.p99), Median(idle.p50), Median(idle.p99),
        Median(ratios));
  };
  std::printf(
      "with a writer of %.0f publications and %.0f evictions a second (%.0f calls a second, "
      "%u rows):\n",
      Median(cycles), Median(evictions), options.lookups_per_second, options.rows);
  print("Lookup", lookup_idle, lookup_busy);
  print("echo, in a process beside the arbiter", echo_idle, echo_busy);
}

}  // namespace kvmesh::bench
