#include "tools/kvmesh/warm_probe.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/status_bridge.h"
#include "tools/kvmesh/bench_util.h"
#include "tools/kvmesh/dial.h"
#include "tools/kvmesh/meta_calls.h"
#include "tools/kvmesh/metrics_page.h"

namespace kvmesh::cli {
namespace {

using Stub = v1::MetaService::Stub;

constexpr absl::Duration kSavesTimeout = absl::Seconds(60);
constexpr absl::Duration kPollInterval = absl::Milliseconds(10);

}  // namespace

absl::StatusOr<WarmProbe> WarmProbe::Make(const LocalMesh& mesh) {
  WarmProbe probe;
  for (const ServiceEntry& service : mesh.file().services) {
    const std::string program = ProgramOf(service.name);
    if (program == "kvmesh-meta") probe.meta_ = MetaStub(service.address);
    if (program != "kvmesh-shard") continue;
    probe.shard_metrics_.push_back(service.metrics);
    KVMESH_ASSIGN_OR_RETURN(const v1::DescribeResponse shard, DescribeShard(service.address));
    for (const v1::StateKindBytes& kind : shard.state_bytes()) {
      probe.state_bytes_per_token_ += kind.bytes_per_token();
    }
  }
  probe.router_ = v1::RouterService::NewStub(Dial(mesh.router(), rpc::Role::kRouter));
  if (probe.meta_ == nullptr) return absl::NotFoundError("the mesh has no arbiter");
  return probe;
}

absl::StatusOr<ShardSums> WarmProbe::Sums() const {
  ShardSums sums;
  for (const std::string& address : shard_metrics_) {
    KVMESH_ASSIGN_OR_RETURN(const std::string page, FetchMetrics(address));
    const auto value = [&page](absl::string_view series) { return MetricOn(page, series); };
    sums.restore_seconds.push_back(value("kvmesh_shard_restore_seconds_sum"));
    sums.prefill_seconds += value("kvmesh_shard_compute_seconds_sum{phase=\"prefill\"}");
    sums.rows_run += value("kvmesh_shard_tokens_total");
    sums.continued_saves += value("kvmesh_shard_saves_total{reason=\"continued\",result=\"done\"}");
  }
  return sums;
}

absl::Status WarmProbe::AwaitSaves(Interrupt& interrupt) const {
  const absl::Time until = absl::Now() + kSavesTimeout;
  while (absl::Now() < until) {
    // The router first: what it has not handed out yet the arbiter may not know.
    v1::GetStatusResponse status;
    grpc::ClientContext context;
    context.set_deadline(MetaDeadline());
    KVMESH_RETURN_IF_ERROR(rpc::FromGrpc(router_->GetStatus(&context, {}, &status)));
    v1::ListReservationsResponse response;
    KVMESH_RETURN_IF_ERROR(
        CallMeta(*meta_, &Stub::ListReservations, v1::ListReservationsRequest(), &response));
    if (status.generations_closing() == 0 && response.reservations().empty()) {
      return absl::OkStatus();
    }
    if (interrupt.WaitFor(kPollInterval)) return absl::CancelledError("interrupted");
  }
  return absl::DeadlineExceededError("a save is still under way after 60 s");
}

absl::StatusOr<double> WarmProbe::SavedOverState() const {
  v1::ListRowsRequest request;
  request.set_page_size(1000);
  v1::ListRowsResponse response;
  KVMESH_RETURN_IF_ERROR(CallMeta(*meta_, &Stub::ListRows, request, &response));
  uint64_t saved = 0;
  uint64_t state = 0;
  for (const v1::RowSummary& row : response.rows()) {
    for (const v1::SlabPlace& slab : row.row().slabs()) saved += slab.size_bytes();
    state += row.row().token_count() * state_bytes_per_token_;
  }
  if (state == 0) return absl::NotFoundError("nothing is stored");
  return static_cast<double>(saved) / static_cast<double>(state);
}

double RestoreMs(const ShardSums& before, const ShardSums& after) {
  double seconds = 0;
  for (size_t i = 0; i < after.restore_seconds.size(); ++i) {
    seconds = std::max(seconds, after.restore_seconds[i] - before.restore_seconds[i]);
  }
  return seconds * 1e3;
}

double PrefillMs(const ShardSums& before, const ShardSums& after) {
  return (after.prefill_seconds - before.prefill_seconds) * 1e3;
}

}  // namespace kvmesh::cli
