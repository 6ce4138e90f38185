#include "services/blob/core/incarnation.h"

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"

namespace kvmesh::blob {

absl::Status CheckIncarnation(const std::optional<Incarnation>& seen, const Incarnation& offered) {
  if (!seen || offered.number > seen->number || offered == *seen) return absl::OkStatus();
  return WithErrorInfo(absl::FailedPreconditionError(absl::StrCat(
                           "the arbiter is incarnation ", offered.number, " (", offered.id.ToHex(),
                           "); this store has obeyed ", seen->number, " (", seen->id.ToHex(), ")")),
                       ErrorInfo{.reason = "STALE_INCARNATION"});
}

}  // namespace kvmesh::blob
