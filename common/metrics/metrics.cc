#include "common/metrics/metrics.h"

#include <prometheus/text_serializer.h>

#include "absl/strings/str_cat.h"

namespace kvmesh::metrics {

prometheus::Histogram::BucketBoundaries LatencyBuckets() {
  return {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
          1,      2.5,   5,      10,    30,   60,    120,  300, 480,  600};
}

prometheus::Histogram::BucketBoundaries StepBuckets() {
  return {0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
          0.05,    0.1,    0.25,    0.5,    1,     2.5,    5,     15,   60};
}

Metrics::Metrics(absl::string_view service)
    : prefix_(absl::StrCat("kvmesh_", service, "_")),
      registry_(
          std::make_shared<prometheus::Registry>(prometheus::Registry::InsertBehavior::Merge)) {}

std::string Metrics::FullName(absl::string_view what_unit) const {
  return absl::StrCat(prefix_, what_unit);
}

prometheus::Counter& Metrics::Counter(absl::string_view what_unit, absl::string_view help,
                                      const Labels& labels) {
  return prometheus::BuildCounter()
      .Name(FullName(what_unit))
      .Help(std::string(help))
      .Register(*registry_)
      .Add(labels);
}

prometheus::Gauge& Metrics::Gauge(absl::string_view what_unit, absl::string_view help,
                                  const Labels& labels) {
  return prometheus::BuildGauge()
      .Name(FullName(what_unit))
      .Help(std::string(help))
      .Register(*registry_)
      .Add(labels);
}

prometheus::Histogram& Metrics::Histogram(absl::string_view what_unit, absl::string_view help,
                                          const prometheus::Histogram::BucketBoundaries& buckets,
                                          const Labels& labels) {
  return prometheus::BuildHistogram()
      .Name(FullName(what_unit))
      .Help(std::string(help))
      .Register(*registry_)
      .Add(labels, buckets);
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

double Metrics::Value(absl::string_view full_name, const Labels& labels) const {
  for (const prometheus::MetricFamily& family : registry_->Collect()) {
    if (family.name != std::string(full_name)) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      Labels found;
      for (const auto& label : metric.label) found[label.name] = label.value;
      if (found != labels) continue;
      return family.type == prometheus::MetricType::Gauge ? metric.gauge.value
                                                          : metric.counter.value;
    }
  }
  return 0;
}

RpcTimer::RpcTimer(Metrics& metrics, const Clock& clock, absl::string_view rpc)
    : metrics_(metrics), clock_(clock), rpc_(rpc), start_(clock.Now()) {}

void RpcTimer::Finish(absl::string_view code_name) {
  metrics_
      .Counter("rpcs_total", "RPCs ended, by method and status code",
               {{"rpc", rpc_}, {"code", std::string(code_name)}})
      .Increment();
  metrics_
      .Histogram("rpc_latency_seconds", "From the start of an RPC to its end", LatencyBuckets(),
                 {{"rpc", rpc_}})
      .Observe(absl::ToDoubleSeconds(clock_.Now() - start_));
}

}  // namespace kvmesh::metrics
