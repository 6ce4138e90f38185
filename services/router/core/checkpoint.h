// What a router and its arbiter say of checkpoints, as plain values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "common/forward/frames.h"
#include "services/router/core/save_policy.h"
#include "services/router/core/seam.h"

namespace kvmesh::router {

// One question to the arbiter or a store; its answer names it.
enum class MetaCall : uint64_t {};
using LeaseId = ByteId<struct LeaseIdTag, 16>;
using RequestId = ByteId<struct RequestIdTag, 16>;

// The same for all generations of a router.
struct CheckpointOptions {
  CheckpointGates gates;
  // Every layer's state of n tokens holds that of fewer: all layers are key/value.
  bool state_can_be_cut = true;
  uint32_t layer_count = 0;
  // From the start of a look-up to a restore that may begin; then the generation goes on cold.
  absl::Duration lookup_wait = absl::Milliseconds(500);
  absl::Duration session_resume_wait = absl::Milliseconds(500);  // for a save in flight to appear
  absl::Duration repair_wait = absl::Seconds(10);  // for a fragment that is being uploaded
  absl::Duration reserve_wait = absl::Seconds(1);
  absl::Duration renew_interval = absl::Seconds(10);  // at most: a third of what was granted
  absl::Duration touch_interval = absl::Seconds(5);   // of orphans, while a hop is waited for
  // Where state cannot be cut, how long the next step waits for a reservation.
  absl::Duration step_hold_max = absl::Milliseconds(20);
};

// What one request wants of checkpoints.
struct CheckpointUse {
  std::string off_cause;  // not empty: none is read or saved, and why
  std::optional<Sha256Digest> parent_key;
  bool require_exact_tokens = false;
  std::string save_tier;  // in place of the reasons' own; empty: those
};

struct StoredSlab {
  forward::SlabRef ref;
  std::string tier;
  friend bool operator==(const StoredSlab&, const StoredSlab&) = default;
};
// As a store names its file: key, layers, write_id.
std::string SlabName(const forward::SlabRef& slab);

// A hit, pinned by `lease`.
struct FoundRow {
  LeaseId lease;
  uint64_t cut_tokens = 0;
  uint64_t cut_text_bytes = 0;
  uint64_t row_tokens = 0;  // of its end
  std::vector<StoredSlab> slabs;
  absl::Duration lease_ttl = absl::InfiniteDuration();  // unless renewed
};

// What the meta section of the slab with the last layer makes of a hit.
struct CheckpointRead {
  Seam seam;
  bool has_output_row = false;
};

struct FragmentPosition {
  Sha256Digest key;
  Sha256Digest tokens_sha256;
  uint64_t tokens = 0;
};
struct FoundFragment {
  size_t position = 0;  // among those asked for
  StoredSlab slab;
  absl::Duration lease_ttl = absl::InfiniteDuration();  // unless renewed
};

struct Reservation {
  WriteId write_id;
  absl::Duration ttl = absl::InfiniteDuration();           // unless renewed
  std::vector<std::pair<LayerRange, std::string>> stores;  // address per range asked for
};

// The slabs to read for `layers`, few of them. NotFound: they do not cover them.
absl::StatusOr<std::vector<forward::SlabRef>> SlabsFor(LayerRange layers,
                                                       absl::Span<const StoredSlab> slabs);

// `tokens` divided among the tiers that hold layers of the row, by layers.
std::map<std::string, uint32_t> TokensByTier(absl::Span<const StoredSlab> slabs,
                                             uint32_t layer_count, uint32_t tokens);

// How a prompt was served (DESIGN §5.7).
enum class Outcome { kCold, kPartial, kExact };
absl::string_view OutcomeName(Outcome outcome);

struct Reuse {
  Outcome outcome = Outcome::kCold;
  std::string cause;  // of kCold
  uint32_t cached_tokens = 0;
  std::map<std::string, uint32_t> cached_by_tier;
  uint32_t drifted_tokens = 0;
};

// Ids of one generation's calls, leases and requests. The latter two are random as far as the
// session's id is, and no two alike.
class HoldIds {
 public:
  explicit HoldIds(const SessionId& session) : session_(session) {}
  MetaCall NextCall() { return MetaCall{++calls_}; }
  LeaseId NextLease();
  RequestId NextRequest();

 private:
  Sha256Digest Next();

  const SessionId session_;
  uint64_t calls_ = 0;
  uint64_t holds_ = 0;
};

}  // namespace kvmesh::router
