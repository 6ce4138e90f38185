#include "services/blob/core/transfer_gate.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"

namespace kvmesh::blob {
namespace {

constexpr absl::Duration kRetryDelay = absl::Milliseconds(200);

}  // namespace

absl::Status TransferGate::Enter() {
  if (running_ < transfers_max_) {
    ++running_;
    return absl::OkStatus();
  }
  return WithRetryDelay(WithErrorInfo(absl::ResourceExhaustedError(absl::StrCat(
                                          running_, " transfers are running, as many as allowed")),
                                      ErrorInfo{.reason = std::string(reason::kQueueFull)}),
                        kRetryDelay);
}

}  // namespace kvmesh::blob
