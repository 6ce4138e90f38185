// The shard's Prometheus metrics: the core's plain counters, exported, and the latencies of a hop.
// Thread-safe, but for Export, which one thread calls at a time.
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "services/shard/core/hop.h"

namespace kvmesh::shard {

class ShardMetrics {
 public:
  ShardMetrics();

  metrics::Metrics& metrics() { return metrics_; }

  // Brings counters and gauges up to what the hop says, and the engine (Engine::kv_saturated).
  void Export(const Hop& hop, uint64_t kv_saturated);
  void ObserveCompute(bool decode, absl::Duration time);
  // For how long the engine has run the frame it is at; zero when it idles.
  void SetComputing(absl::Duration time);
  void ObserveWait(absl::Duration time);
  // From sending a step to the next hop to its answer: that hop and all behind it.
  void ObserveDownstream(absl::Duration time);
  // Of one that succeeded: reading, verifying and taking over the state of all layers.
  void ObserveRestore(absl::Duration time);

 private:
  // A counter that follows a number which only grows.
  struct Follower {
    prometheus::Counter* counter = nullptr;
    uint64_t seen = 0;
    void Follow(uint64_t value);
  };
  void MakeCheckpointCounters();
  void ExportCheckpoints(const Hop& hop);
  Follower Make(absl::string_view name, absl::string_view help, const metrics::Labels& labels = {});

  metrics::Metrics metrics_{"shard"};
  std::array<Follower, kMissCauseCount> misses_;
  std::array<Follower, kEvictCauseCount> evictions_;
  Follower no_room_, too_large_, streams_total_, superseded_, replays_, steps_, tokens_;
  Follower cancelled_, bad_logits_, kv_saturated_, full_hits_, restores_done_;
  std::array<Follower, kSaveReasonCount> saves_done_, saved_bytes_;
  std::array<std::array<Follower, kSaveReasonCount>, kSaveDropCount> saves_dropped_;
  std::array<Follower, kRestoreFaultCount> restores_failed_;
  prometheus::Gauge& live_;
  prometheus::Gauge& idle_;
  prometheus::Gauge& orphaned_;
  prometheus::Gauge& bytes_;
  prometheus::Gauge& bytes_max_;
  prometheus::Gauge& streams_;
  prometheus::Gauge& queued_;
  prometheus::Gauge& draining_;
  prometheus::Gauge& computing_;
  prometheus::Gauge& saves_in_flight_;
  prometheus::Gauge& save_bytes_in_flight_;
  prometheus::Histogram& prefill_seconds_;
  prometheus::Histogram& decode_seconds_;
  prometheus::Histogram& wait_seconds_;
  prometheus::Histogram& downstream_seconds_;
  prometheus::Histogram& restore_seconds_;
};

}  // namespace kvmesh::shard
