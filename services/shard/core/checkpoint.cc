#include "services/shard/core/checkpoint.h"

namespace kvmesh::shard {

absl::string_view SaveDropName(SaveDrop drop) {
  static constexpr absl::string_view kNames[] = {
      "checkpoints_off", "no_target",         "not_held",   "cannot_cut",      "too_short",
      "backpressure",    "no_memory",         "no_arbiter", "reserve_refused", "encode_failed",
      "store_refused",   "store_unavailable", "deadline",   "shutting_down"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kSaveDropCount);
  return kNames[static_cast<size_t>(drop)];
}

absl::string_view SaveReasonName(forward::SaveReason reason) {
  static constexpr absl::string_view kNames[] = {"cold", "continued", "finish", "evict",
                                                 "shutdown"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kSaveReasonCount);
  return kNames[static_cast<size_t>(reason)];
}

absl::string_view RestoreFaultName(RestoreFault fault) {
  static constexpr absl::string_view kNames[] = {
      "not_found",     "unavailable", "refused",   "deadline", "corrupt",  "wrong_slab",
      "tokens_differ", "wrong_state", "no_memory", "busy",     "cancelled"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kRestoreFaultCount);
  return kNames[static_cast<size_t>(fault)];
}

}  // namespace kvmesh::shard
