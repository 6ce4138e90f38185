#include "tools/kvmesh/outcome.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/error_info.h"

namespace kvmesh::cli {

int ExitCodeOf(const absl::Status& status, bool interrupted) {
  if (status.ok()) return kDone;
  if (interrupted) return kInterrupted;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return kUnavailable;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return kRefused;
    default:
      return kFailed;
  }
}

void PrintJson(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

int Report(const absl::Status& status, bool json, bool interrupted) {
  if (status.ok()) return kDone;
  const std::string message(status.message().data(), status.message().size());
  const std::string code = absl::StatusCodeToString(status.code());
  if (json) {
    Json error = {{"code", code}};
    if (const std::string reason = ReasonOf(status); !reason.empty()) error["reason"] = reason;
    error["message"] = message;
    PrintJson({{"error", error}});
  }
  if (interrupted) {
    std::fprintf(stderr, "interrupted\n");
  } else {
    std::fprintf(stderr, "error: %s: %s\n", code.c_str(), message.c_str());
  }
  return ExitCodeOf(status, interrupted);
}

void Progress(absl::string_view line) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "%s\n", std::string(line).c_str());
}

std::string HumanBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrFormat(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
}

}  // namespace kvmesh::cli
