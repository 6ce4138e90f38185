#include "common/base/error_info.h"

#include <nlohmann/json.hpp>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

constexpr absl::string_view kErrorInfoUrl = "kvmesh/error_info";
constexpr absl::string_view kRetryUrl = "kvmesh/retry_delay_ms";

}  // namespace

absl::Status WithErrorInfo(absl::Status status, const ErrorInfo& info) {
  const nlohmann::json json = {{"reason", info.reason}, {"metadata", info.metadata}};
  // Foreign bytes in a value must not throw: they are replaced.
  status.SetPayload(kErrorInfoUrl, absl::Cord(json.dump(-1, ' ', false,
                                                        nlohmann::json::error_handler_t::replace)));
  return status;
}

std::optional<ErrorInfo> ErrorInfoOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrorInfoUrl);
  if (!payload.has_value()) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(std::string(*payload), nullptr, false);
  if (json.is_discarded()) return std::nullopt;
  return ErrorInfo{.reason = json.value("reason", ""),
                   .metadata = json.value("metadata", std::map<std::string, std::string>())};
}

std::string ReasonOf(const absl::Status& status) {
  std::optional<ErrorInfo> info = ErrorInfoOf(status);
  return info.has_value() ? info->reason : std::string();
}

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
  status.SetPayload(kRetryUrl, absl::Cord(absl::StrCat(absl::ToInt64Milliseconds(delay))));
  return status;
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRetryUrl);
  int64_t millis = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &millis))
    return std::nullopt;
  return absl::Milliseconds(millis);
}

}  // namespace kvmesh
