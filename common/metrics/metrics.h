// Prometheus metrics of one service object. Names are `kvmesh_<service>_<what>_<unit>`; labels have
// few, fixed values. One Metrics belongs to one service, not to the process, so that a test can run
// many services side by side. Thread-safe. References it hands out live as long as it does.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace kvmesh::metrics {

using Labels = std::map<std::string, std::string>;

// Upper bounds in seconds. Latencies of whole answers reach 600 s.
prometheus::Histogram::BucketBoundaries LatencyBuckets();  // 0.5 ms … 600 s
prometheus::Histogram::BucketBoundaries StepBuckets();     // 50 us … 60 s

class Metrics {
 public:
  // `service`: "router", "shard", … the second part of every name.
  explicit Metrics(absl::string_view service);
  ~Metrics();

  // The same name and labels give the same object. `what_unit` is the name without its prefix:
  // "requests_total".
  prometheus::Counter& Counter(absl::string_view what_unit, absl::string_view help,
                               const Labels& labels = {});
  prometheus::Gauge& Gauge(absl::string_view what_unit, absl::string_view help,
                           const Labels& labels = {});
  prometheus::Histogram& Histogram(absl::string_view what_unit, absl::string_view help,
                                   const prometheus::Histogram::BucketBoundaries& buckets,
                                   const Labels& labels = {});

  // What is counted of the RPCs of one method; the same one each time.
  class Rpc;
  Rpc& RpcOf(absl::string_view method);

  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }
  // What /metrics would serve, for tests.
  std::string Text() const;
  // The value of one counter or gauge by its full name and labels; 0 when it was never made. For
  // tests.
  double Value(absl::string_view full_name, const Labels& labels = {}) const;

 private:
  std::string FullName(absl::string_view what_unit) const;

  std::string prefix_;
  std::shared_ptr<prometheus::Registry> registry_;  // shared with the server that serves it
  Mutex rpcs_mutex_;
  absl::flat_hash_map<std::string, std::unique_ptr<Rpc>> rpcs_ ABSL_GUARDED_BY(rpcs_mutex_);
};

// Requests by code and latency of one method. Keeps what it has made: to find a counter by its name
// and labels takes the registry's lock and dozens of allocations, more than a short RPC.
class Metrics::Rpc {
 public:
  Rpc(Metrics& metrics, absl::string_view method);
  // `code_name`: as of rpc::CodeName.
  void Ended(absl::string_view code_name, absl::Duration took);

 private:
  prometheus::Counter& CounterOf(absl::string_view code_name);

  Metrics& metrics_;
  const std::string method_;
  prometheus::Histogram& latency_;
  Mutex mutex_;
  absl::flat_hash_map<std::string, prometheus::Counter*> by_code_ ABSL_GUARDED_BY(mutex_);
};

// Counts one RPC: requests, errors by code, latency. Finish exactly once.
class RpcTimer {
 public:
  RpcTimer(Metrics& metrics, const Clock& clock, absl::string_view rpc)
      : rpc_(metrics.RpcOf(rpc)), clock_(clock), start_(clock.Now()) {}
  void Finish(absl::string_view code_name) { rpc_.Ended(code_name, clock_.Now() - start_); }

 private:
  Metrics::Rpc& rpc_;
  const Clock& clock_;
  MonoTime start_;
};

// Serves /metrics over plain HTTP for as long as it lives, in one thread. A peer that is slow to
// ask or to read holds up nobody else, and is cut after seconds.
//
// Not prometheus-cpp's Exposer: its web server runs threads on stacks of 100 KiB, less than the
// thread-local storage of OpenBLAS and libtorch takes, so that no thread starts in a process that
// has them loaded.
class MetricsServer {
 public:
  // `address`: host:port, port 0 for any. InvalidArgument: not of that form. Unavailable: it cannot
  // be bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                              const Metrics& metrics);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const { return port_; }

 private:
  MetricsServer(int listener, int wake, int port, std::shared_ptr<prometheus::Registry> registry);
  class Connection;
  void Run();
  void Accept(std::vector<std::unique_ptr<Connection>>* connections) const;

  const int listener_;
  const int wake_;  // eventfd: written once, to end the thread
  const int port_;
  const std::shared_ptr<prometheus::Registry> registry_;  // shared with the Metrics that fills it
  std::thread thread_;
};

}  // namespace kvmesh::metrics
