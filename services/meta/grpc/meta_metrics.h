// What the arbiter counts for Prometheus. Thread-safe.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "services/meta/core/arbiter.h"

namespace kvmesh::meta {

class MetaMetrics {
 public:
  explicit MetaMetrics(metrics::Metrics& metrics);

  void CountHit(Tier tier, uint32_t tokens);
  void CountMiss() { misses_.Increment(); }
  void CountLostCheckout() { checkouts_lost_.Increment(); }
  void ObserveLookup(absl::Duration took) { lookup_seconds_.Observe(absl::ToDoubleSeconds(took)); }
  void SetQueue(size_t commands) { queue_.Set(static_cast<double>(commands)); }
  // What the arbiter says of itself, once a second.
  void SetState(const ArbiterCounts& counts, size_t cut_points,
                const std::vector<StoreSnapshot>& stores);

  metrics::Metrics& metrics() { return metrics_; }

 private:
  metrics::Metrics& metrics_;
  prometheus::Counter& hits_;
  std::array<prometheus::Counter*, kTiers> hit_tokens_;
  prometheus::Counter& misses_;
  prometheus::Counter& checkouts_lost_;
  prometheus::Histogram& lookup_seconds_;
  prometheus::Gauge& queue_;
  Mutex mutex_;
  // As they were when they were last added to the counters.
  std::map<std::string, uint64_t> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::meta
