// Stage-local repair (DESIGN §5.6): for hops that lost their state in mid-generation, waits for the
// fragments that they left, so that only those hops restore.
//
// Pure; not thread-safe. Begin, then inputs until running() is false; then complete() says whether
// every lost hop has a fragment. Invariant: every lease ends, by End at the latest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "services/router/core/checkpoint.h"
#include "services/router/core/effects.h"

namespace kvmesh::router {

class FragmentRepair {
 public:
  // All must outlive it.
  FragmentRepair(const CheckpointOptions& options, HoldIds& ids, Effects& effects)
      : options_(options), ids_(ids), effects_(effects) {}

  // `hops`: the route; `lost`: indices in it. `positions`: where the hop may stand, before the step
  // `step` and after it.
  void Begin(const forward::CacheNamespace& cache_namespace,
             const std::vector<forward::HopRef>& hops, const std::vector<uint32_t>& lost,
             std::vector<FragmentPosition> positions, uint32_t step, MonoTime now);
  void OnFragment(MetaCall call, const absl::StatusOr<FoundFragment>& found);
  void Tick(MonoTime now);
  MonoTime NextTimer() const { return running() ? give_up_at_ : absl::InfiniteDuration(); }

  bool running() const;
  bool complete() const;
  // What the lost hops load. complete() holds.
  std::vector<forward::HopRestore> Restores() const;
  std::vector<LeaseId> Leases() const;
  // The hops have read their fragments, or will not; `bad_slab` by name or empty.
  void End(const std::string& bad_slab);

 private:
  struct Wait {
    uint32_t hop_index = 0;
    MetaCall call{0};
    LeaseId lease;
    bool answered = false;
    std::optional<FoundFragment> found;
  };

  const CheckpointOptions& options_;
  HoldIds& ids_;
  Effects& effects_;
  std::vector<FragmentPosition> positions_;
  uint32_t step_ = 0;
  std::vector<Wait> waits_;
  MonoTime give_up_at_;
};

}  // namespace kvmesh::router
