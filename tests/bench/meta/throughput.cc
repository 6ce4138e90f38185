// `Lookup` beside an echo of messages of the same size, in turn: what else the machine does hits
// both.
#include <cstdio>

#include "echo/echo.grpc.pb.h"
#include "tests/bench/meta/bench_parts.h"
#include "tests/bench/meta/bench_store.h"
#include "tests/bench/meta/load.h"

namespace kvmesh::bench {
namespace {

template <typename Stub>
std::vector<std::unique_ptr<typename Stub::Stub>> StubsOf(const std::string& address, int count) {
  std::vector<std::unique_ptr<typename Stub::Stub>> stubs;
  stubs.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) stubs.push_back(Stub::NewStub(Connect(address)));
  return stubs;
}

struct Series {
  std::vector<double> rates;                 // calls a second
  std::vector<double> server_us, client_us;  // of processor a call
};

}  // namespace

void BenchThroughput(const PartOptions& options) {
  const cli::ChatCorpus corpus(options.rows, 1);
  const auto requests = RequestsOf(corpus, options.prompt_bytes, 4096);
  const auto meta = StartMeta();
  const auto echo = StartEcho();
  BenchStore store("disk", 1ULL << 60);
  store.Attach(Connect(meta->address()), corpus.size(), [&](uint32_t i) { return corpus.Row(i); });
  const auto lookups = StubsOf<kvmesh::v1::MetaService>(meta->address(), options.connections);
  const auto echoes = StubsOf<v1::EchoService>(echo->address(), options.connections);
  AwaitTrue("the rows", [&] { return Serves(*lookups[0], options.rows); });
  const StartCall look = [&](size_t i, auto* context, auto* request, auto* response, auto done) {
    lookups[i]->async()->Lookup(context, request, response, std::move(done));
  };
  const StartCall bare = [&](size_t i, auto* context, auto* request, auto* response, auto done) {
    echoes[i]->async()->Echo(context, request, response, std::move(done));
  };
  const StartCall hashing = [&](size_t i, auto* context, auto* request, auto* response, auto done) {
    echoes[i]->async()->HashAndEcho(context, request, response, std::move(done));
  };
  Series echo_calls, hashing_calls, lookup_calls;
  for (int round = 0; round <= options.rounds; ++round) {
    const auto measure = [&](const StartCall& start, const ServerProcess& server, Series* series) {
      const double server_before = server.CpuSeconds();
      const double client_before = OwnCpuSeconds();
      const LoadResult result =
          AtFullSpeed(start, static_cast<size_t>(options.connections),
                      static_cast<size_t>(options.in_flight), options.seconds, requests);
      if (round == 0) return;  // only warms up
      const auto us_a_call = [&](double cpu_seconds) {
        return cpu_seconds * 1e6 / static_cast<double>(result.latencies_us.size());
      };
      series->rates.push_back(result.per_second());
      series->server_us.push_back(us_a_call(server.CpuSeconds() - server_before));
      series->client_us.push_back(us_a_call(OwnCpuSeconds() - client_before));
    };
    measure(bare, *echo, &echo_calls);
    measure(hashing, *echo, &hashing_calls);
    measure(look, *meta, &lookup_calls);
  }
  std::printf("throughput (%u rows, prompts of %u bytes, %d connections of %d calls):\n",
              options.rows, options.prompt_bytes, options.connections, options.in_flight);
  const auto print = [&](const char* what, const Series& series) {
    std::vector<double> ratios;
    for (size_t i = 0; i < series.rates.size(); ++i) {
      ratios.push_back(series.rates[i] / echo_calls.rates[i]);
    }
    std::printf(
        "  %s: %.0f/s, %.2f of the echo; CPU of server and client %.1f and %.1f us a call\n", what,
        Median(series.rates), Median(ratios), Median(series.server_us), Median(series.client_us));
  };
  print("echo", echo_calls);
  print("echo after SHA-256 of the prompt", hashing_calls);
  print("Lookup", lookup_calls);
}

}  // namespace kvmesh::bench
