#include "common/rpc/status_bridge.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/limits.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace kvmesh::rpc {
namespace {

constexpr char kDomain[] = "kvmesh";
constexpr size_t kMessageBytesMax = 1024;

// Cuts at a character's edge and replaces bytes that are not UTF-8: a proto string must be.
std::string SafeMessage(absl::string_view message) {
  std::string safe;
  for (char c : message.substr(0, kMessageBytesMax)) {
    const bool printable =
        static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f;
    safe += printable || c == '\n' ? c : '?';
  }
  return safe;
}

google::protobuf::Any PackErrorInfo(const ErrorInfo& info, bool with_metadata) {
  google::rpc::ErrorInfo proto;
  proto.set_reason(SafeMessage(info.reason));
  proto.set_domain(kDomain);
  if (with_metadata) {
    for (const auto& [key, value] : info.metadata) {
      (*proto.mutable_metadata())[SafeMessage(key)] = SafeMessage(value);
    }
  }
  google::protobuf::Any any;
  any.PackFrom(proto);
  return any;
}

google::rpc::Status BuildDetails(const absl::Status& status, const std::string& message,
                                 bool with_metadata) {
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  if (const std::optional<ErrorInfo> info = ErrorInfoOf(status)) {
    *details.add_details() = PackErrorInfo(*info, with_metadata);
  }
  if (const std::optional<absl::Duration> delay = RetryDelayOf(status)) {
    google::rpc::RetryInfo retry;
    const int64_t millis = absl::ToInt64Milliseconds(*delay);
    retry.mutable_retry_delay()->set_seconds(millis / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(millis % 1000 * 1000000));
    details.add_details()->PackFrom(retry);
  }
  return details;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = SafeMessage(status.message());
  google::rpc::Status details = BuildDetails(status, message, /*with_metadata=*/true);
  if (details.ByteSizeLong() + message.size() > limits::kStatusBytesMax) {
    details = BuildDetails(status, "", /*with_metadata=*/true);
  }
  if (details.ByteSizeLong() + message.size() > limits::kStatusBytesMax) {
    details = BuildDetails(status, "", /*with_metadata=*/false);
  }
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (details.details_size() == 0) return grpc::Status(code, message);
  return grpc::Status(code, message, details.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (status.error_details().empty() || !details.ParseFromString(status.error_details())) {
    return result;
  }
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    if (any.Is<google::rpc::ErrorInfo>() && any.UnpackTo(&info) && info.domain() == kDomain) {
      result = WithErrorInfo(
          result, ErrorInfo{.reason = info.reason(),
                            .metadata = {info.metadata().begin(), info.metadata().end()}});
    } else if (any.Is<google::rpc::RetryInfo>() && any.UnpackTo(&retry)) {
      result = WithRetryDelay(result, absl::Seconds(retry.retry_delay().seconds()) +
                                          absl::Nanoseconds(retry.retry_delay().nanos()));
    }
  }
  return result;
}

absl::string_view CodeName(grpc::StatusCode code) {
  static constexpr absl::string_view kNames[] = {"OK",
                                                 "CANCELLED",
                                                 "UNKNOWN",
                                                 "INVALID_ARGUMENT",
                                                 "DEADLINE_EXCEEDED",
                                                 "NOT_FOUND",
                                                 "ALREADY_EXISTS",
                                                 "PERMISSION_DENIED",
                                                 "RESOURCE_EXHAUSTED",
                                                 "FAILED_PRECONDITION",
                                                 "ABORTED",
                                                 "OUT_OF_RANGE",
                                                 "UNIMPLEMENTED",
                                                 "INTERNAL",
                                                 "UNAVAILABLE",
                                                 "DATA_LOSS",
                                                 "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : absl::string_view("UNKNOWN");
}

}  // namespace kvmesh::rpc
