// What a service tells Prometheus, read once.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvmesh::cli {

// The body of http://ADDRESS/metrics. InvalidArgument: not an IPv4 address and a port. Unavailable:
// nothing answers there, or not within ten seconds.
absl::StatusOr<std::string> FetchMetrics(const std::string& address);

// The value of the sample with this full name and these labels, as they stand on the page:
// `kvmesh_shard_compute_seconds_sum{phase="decode"}`. 0 when there is none.
double MetricOn(absl::string_view page, absl::string_view sample);

}  // namespace kvmesh::cli
