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

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"

namespace kvmesh::metrics {

using Labels = std::map<std::string, std::string>;

// Upper bounds in seconds. Latencies of whole answers reach 600 s.
prometheus::Histogram::BucketBoundaries LatencyBuckets();  // 0.5 ms … 600 s
prometheus::Histogram::BucketBoundaries StepBuckets();     // 50 us … 60 s

class Metrics {
 public:
  // `service`: "router", "shard", … the second part of every name.
  explicit Metrics(absl::string_view service);

  // The same name and labels give the same object. `what_unit` is the name without its prefix:
  // "requests_total".
  prometheus::Counter& Counter(absl::string_view what_unit, absl::string_view help,
                               const Labels& labels = {});
  prometheus::Gauge& Gauge(absl::string_view what_unit, absl::string_view help,
                           const Labels& labels = {});
  prometheus::Histogram& Histogram(absl::string_view what_unit, absl::string_view help,
                                   const prometheus::Histogram::BucketBoundaries& buckets,
                                   const Labels& labels = {});

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
};

// Counts one RPC: requests, errors by code, latency. Finish exactly once.
class RpcTimer {
 public:
  RpcTimer(Metrics& metrics, const Clock& clock, absl::string_view rpc);
  void Finish(absl::string_view code_name);

 private:
  Metrics& metrics_;
  const Clock& clock_;
  std::string rpc_;
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
