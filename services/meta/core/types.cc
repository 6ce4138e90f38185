#include "services/meta/core/types.h"

#include "services/meta/core/options.h"

namespace kvmesh::meta {

absl::string_view ToString(Tier tier) {
  switch (tier) {
    case Tier::kRam:
      return "ram";
    case Tier::kRamFile:
      return "ram_file";
    case Tier::kDisk:
      return "disk";
  }
  return "unknown";
}

absl::string_view ToString(SlabState state) {
  switch (state) {
    case SlabState::kReserved:
      return "RESERVED";
    case SlabState::kLive:
      return "LIVE";
    case SlabState::kDeleting:
      return "DELETING";
  }
  return "UNKNOWN";
}

absl::string_view ToString(RowState state) {
  switch (state) {
    case RowState::kWriting:
      return "WRITING";
    case RowState::kAvailable:
      return "AVAILABLE";
    case RowState::kStoreLost:
      return "STORE_LOST";
    case RowState::kFragment:
      return "FRAGMENT";
    case RowState::kDeleting:
      return "DELETING";
  }
  return "UNKNOWN";
}

absl::string_view ToString(ReservationState state) {
  switch (state) {
    case ReservationState::kWaitingForRoom:
      return "WAITING_FOR_ROOM";
    case ReservationState::kReserved:
      return "RESERVED";
    case ReservationState::kPartial:
      return "PARTIAL";
    case ReservationState::kExpired:
      return "EXPIRED";
  }
  return "UNKNOWN";
}

absl::string_view ToString(StoreState state) {
  switch (state) {
    case StoreState::kInventory:
      return "INVENTORY";
    case StoreState::kServing:
      return "SERVING";
    case StoreState::kLost:
      return "LOST";
  }
  return "UNKNOWN";
}

absl::string_view ToString(GoneCause cause) {
  switch (cause) {
    case GoneCause::kEvicted:
      return "evicted";
    case GoneCause::kQuota:
      return "evicted_for_quota";
    case GoneCause::kOperator:
      return "evicted_by_operator";
    case GoneCause::kSlabLost:
      return "slab_lost";
    case GoneCause::kSlabBad:
      return "slab_bad";
    case GoneCause::kDisplaced:
      return "displaced";
  }
  return "unknown";
}

const std::vector<Tier>& TierPolicy::Of(slab::SaveReason reason) const {
  switch (reason) {
    case slab::SaveReason::kCold:
      return cold;
    case slab::SaveReason::kContinued:
      return continued;
    case slab::SaveReason::kFinish:
      return finish;
    case slab::SaveReason::kEvict:
      return evict;
    case slab::SaveReason::kShutdown:
      return shutdown;
  }
  return cold;
}

}  // namespace kvmesh::meta
