#include "services/blob/grpc/blob_metrics.h"

#include <glog/logging.h>

namespace kvmesh::blob {
namespace {

constexpr char kBytesHelp[] = "Bytes by what they are of";

}  // namespace

BlobMetrics::BlobMetrics(metrics::Metrics& metrics)
    : metrics_(metrics),
      puts_(metrics.Counter("slabs_put_total", "Slabs published")),
      adopted_(metrics.Counter("slabs_adopted_total", "Repeated puts of a slab that was here")),
      removed_(metrics.Counter("slabs_removed_total", "Slabs deleted or quarantined")),
      quarantined_(metrics.Counter("slabs_quarantined_total", "Bad slabs moved aside")),
      bytes_put_(metrics.Counter("put_bytes_total", "Bytes of chunks received")),
      bytes_got_(metrics.Counter("get_bytes_total", "Bytes of chunks sent")),
      stalls_(metrics.Counter("stalled_transfers_total",
                              "Transfers cut off because the client neither sent nor read")) {}

void BlobMetrics::OnPut(const PutResult& put) {
  (put.adopted ? adopted_ : puts_).Increment();
}

void BlobMetrics::OnRemoved(const SlabName& name) {
  removed_.Increment();
}

void BlobMetrics::OnQuarantined(const SlabName& name, const absl::Status& why) {
  quarantined_.Increment();
  LOG(WARNING) << "quarantined slab " << name.ToFileName() << ": " << why.message();
}

void BlobMetrics::SetStartup(const StartupReport& report) {
  LOG(INFO) << "start-up: " << report.kept << " slabs kept";
  for (const auto& [cause, count] : report.removed) {
    metrics_.Counter("startup_removed_total", "Files removed at start-up", {{"cause", cause}})
        .Increment(static_cast<double>(count));
    LOG(INFO) << "start-up: " << count << " removed: " << cause;
  }
  for (const auto& [defect, count] : report.quarantined) {
    metrics_.Counter("startup_quarantined_total", "Slabs refused at start-up", {{"defect", defect}})
        .Increment(static_cast<double>(count));
    LOG(WARNING) << "start-up: " << count << " quarantined: " << defect;
  }
  for (const auto& [cause, count] : report.left_alone) {
    metrics_.Counter("startup_left_alone_total", "Files that are no slabs", {{"cause", cause}})
        .Increment(static_cast<double>(count));
    LOG(WARNING) << "start-up: " << count << " files left alone: " << cause;
  }
}

void BlobMetrics::SetUsage(const Usage& usage, uint32_t transfers) {
  const auto set = [&](const char* what, uint64_t bytes) {
    metrics_.Gauge("bytes", kBytesHelp, {{"what", what}}).Set(static_cast<double>(bytes));
  };
  set("budget", usage.budget_bytes);
  set("used", usage.used_bytes);
  set("in_flight", usage.in_flight_bytes);
  set("quarantined", usage.quarantined_bytes);
  metrics_.Gauge("slabs", "Slabs held").Set(static_cast<double>(usage.slabs));
  metrics_.Gauge("transfers", "Puts and gets that run").Set(transfers);
}

}  // namespace kvmesh::blob
