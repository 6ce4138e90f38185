// The refusals of the arbiter, each with the reason that callers act on.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"

namespace kvmesh::meta {

// Ends by itself, soon: a write, a delete, a full table.
inline constexpr absl::Duration kBusyRetry = absl::Milliseconds(200);

inline absl::Status Refusal(absl::Status status, absl::string_view reason) {
  return WithErrorInfo(std::move(status), ErrorInfo{.reason = std::string(reason)});
}
inline absl::Status RefusalForNow(absl::Status status, absl::string_view reason,
                                  absl::Duration retry = kBusyRetry) {
  return WithRetryDelay(Refusal(std::move(status), reason), retry);
}
inline absl::Status TooMany(absl::string_view what, size_t limit, absl::string_view reason) {
  return RefusalForNow(
      absl::ResourceExhaustedError(absl::StrCat("all ", limit, " ", what, " are taken")), reason);
}

}  // namespace kvmesh::meta
