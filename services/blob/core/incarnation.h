// Whom a store obeys: one arbiter process, an incarnation, at a time. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace kvmesh::blob {

using IncarnationId = ByteId<struct IncarnationIdTag, 16>;

struct Incarnation {
  uint64_t number = 0;
  IncarnationId id;
  friend bool operator==(const Incarnation&, const Incarnation&) = default;
};

// Whether a store that has obeyed `seen` may obey `offered`. FailedPrecondition STALE_INCARNATION:
// its number is lower, or the same under another id; both are named. Two arbiters thus cannot both
// write to one store.
absl::Status CheckIncarnation(const std::optional<Incarnation>& seen, const Incarnation& offered);

}  // namespace kvmesh::blob
