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

Metrics::~Metrics() = default;

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

Metrics::Rpc& Metrics::RpcOf(absl::string_view method) {
  MutexLock lock(&rpcs_mutex_);
  const auto known = rpcs_.find(method);
  if (known != rpcs_.end()) return *known->second;
  return *rpcs_.emplace(std::string(method), std::make_unique<Rpc>(*this, method)).first->second;
}

Metrics::Rpc::Rpc(Metrics& metrics, absl::string_view method)
    : metrics_(metrics),
      method_(method),
      latency_(metrics.Histogram("rpc_latency_seconds", "From the start of an RPC to its end",
                                 LatencyBuckets(), {{"rpc", method_}})) {}

void Metrics::Rpc::Ended(absl::string_view code_name, absl::Duration took) {
  CounterOf(code_name).Increment();
  latency_.Observe(absl::ToDoubleSeconds(took));
}

prometheus::Counter& Metrics::Rpc::CounterOf(absl::string_view code_name) {
  MutexLock lock(&mutex_);
  const auto known = by_code_.find(code_name);
  if (known != by_code_.end()) return *known->second;
  prometheus::Counter& counter =
      metrics_.Counter("rpcs_total", "RPCs ended, by method and status code",
                       {{"rpc", method_}, {"code", std::string(code_name)}});
  by_code_.emplace(code_name, &counter);
  return counter;
}

}  // namespace kvmesh::metrics
