// What the store counts for Prometheus. Thread-safe.
#pragma once

#include "common/metrics/metrics.h"
#include "services/blob/tiers/slab_store.h"

namespace kvmesh::blob {

class BlobMetrics final : public StoreEvents {
 public:
  explicit BlobMetrics(metrics::Metrics& metrics);

  void OnPut(const PutResult& put) override;
  void OnRemoved(const SlabName& name) override;
  // Also logs it: an operator wants to know which and why.
  void OnQuarantined(const SlabName& name, const absl::Status& why) override;

  // Once, after start-up.
  void SetStartup(const StartupReport& report);
  void SetUsage(const Usage& usage, uint32_t transfers);
  void AddBytesPut(uint64_t bytes) { bytes_put_.Increment(static_cast<double>(bytes)); }
  void AddBytesGot(uint64_t bytes) { bytes_got_.Increment(static_cast<double>(bytes)); }
  void CountStall() { stalls_.Increment(); }
  // `kind`: one of the few that the arbiter can send.
  void CountCommand(absl::string_view kind) {
    metrics_
        .Counter("arbiter_commands_total", "Frames from the arbiter", {{"kind", std::string(kind)}})
        .Increment();
  }

  uint64_t quarantined() const { return static_cast<uint64_t>(quarantined_.Value()); }
  metrics::Metrics& metrics() { return metrics_; }

 private:
  metrics::Metrics& metrics_;
  prometheus::Counter& puts_;
  prometheus::Counter& adopted_;
  prometheus::Counter& removed_;
  prometheus::Counter& quarantined_;
  prometheus::Counter& bytes_put_;
  prometheus::Counter& bytes_got_;
  prometheus::Counter& stalls_;
};

}  // namespace kvmesh::blob
