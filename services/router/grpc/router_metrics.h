// What a router counts. References live as long as the Metrics they came from. Thread-safe.
#pragma once

#include "absl/strings/string_view.h"
#include "common/metrics/metrics.h"
#include "services/router/core/generation.h"

namespace kvmesh::router {

struct RouterMetrics {
  explicit RouterMetrics(metrics::Metrics& all);

  void Count(const Event& event);
  void CountSave(const SaveEnded& save);
  void CountReuse(const Reuse& reuse);
  void CountLookup(const absl::StatusOr<std::optional<FoundRow>>& found, absl::Duration latency);
  // Of tenants with a name alone; there are as many as the file of clients has.
  void CountTenantTokens(const std::string& tenant, uint64_t tokens);
  void CountTenantRefusal(const std::string& tenant, const std::string& limit);
  // `result`: the FinishReason or status code, by name.
  void CountGeneration(absl::string_view result);

  metrics::Metrics& all;
  prometheus::Histogram& time_to_first_token;
  prometheus::Histogram& time_per_output_token;
  prometheus::Histogram& queued;
  prometheus::Gauge& running;
  prometheus::Gauge& closing;
  prometheus::Gauge& queue_depth;
  prometheus::Gauge& shards_seen;
  prometheus::Gauge& route_ready;
  prometheus::Counter& prompt_tokens;
  prometheus::Counter& output_tokens;
  prometheus::Counter& reprefills;
  prometheus::Counter& replans;
  prometheus::Counter& link_retries;
  prometheus::Counter& refusals;
  prometheus::Counter& watchdog_probes;
  prometheus::Counter& repairs;
  prometheus::Histogram& lookup;
};

}  // namespace kvmesh::router
