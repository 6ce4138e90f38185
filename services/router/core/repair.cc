#include "services/router/core/repair.h"

#include <algorithm>
#include <utility>

namespace kvmesh::router {
namespace {

// For the arbiter's answer to come behind the waits it was given.
constexpr absl::Duration kAnswerSlack = absl::Seconds(1);

}  // namespace

void FragmentRepair::Begin(const forward::CacheNamespace& cache_namespace,
                           const std::vector<forward::HopRef>& hops,
                           const std::vector<uint32_t>& lost,
                           std::vector<FragmentPosition> positions, uint32_t step, MonoTime now) {
  End("");
  positions_ = std::move(positions);
  step_ = step;
  give_up_at_ = now + options_.session_resume_wait + options_.repair_wait + kAnswerSlack;
  for (const uint32_t hop : lost) {
    const Wait& wait = waits_.emplace_back(
        Wait{.hop_index = hop, .call = ids_.NextCall(), .lease = ids_.NextLease()});
    effects_.emplace_back(AwaitFragment{.call = wait.call,
                                        .cache_namespace = cache_namespace,
                                        .layers = hops[hop].layers,
                                        .positions = positions_,
                                        .appear_wait = options_.session_resume_wait,
                                        .upload_wait = options_.repair_wait,
                                        .lease = wait.lease});
  }
}

void FragmentRepair::OnFragment(MetaCall call, const absl::StatusOr<FoundFragment>& found) {
  const auto wait = std::find_if(waits_.begin(), waits_.end(),
                                 [call](const Wait& one) { return one.call == call; });
  if (wait == waits_.end() || wait->answered) return;
  wait->answered = true;
  if (found.ok() && found->position < positions_.size()) wait->found = *found;
}

void FragmentRepair::Tick(MonoTime now) {
  if (now < give_up_at_) return;
  for (Wait& wait : waits_) wait.answered = true;
}

// One that is missing spoils it: nobody waits for the others then.
bool FragmentRepair::running() const {
  const auto missing = [](const Wait& one) { return one.answered && !one.found.has_value(); };
  const auto open = [](const Wait& one) { return !one.answered; };
  return std::none_of(waits_.begin(), waits_.end(), missing) &&
         std::any_of(waits_.begin(), waits_.end(), open);
}

bool FragmentRepair::complete() const {
  return !waits_.empty() && std::all_of(waits_.begin(), waits_.end(),
                                        [](const Wait& one) { return one.found.has_value(); });
}

std::vector<forward::HopRestore> FragmentRepair::Restores() const {
  std::vector<forward::HopRestore> restores;
  restores.reserve(waits_.size());
  for (const Wait& wait : waits_) {
    // Behind the first position the step has been run.
    const bool has_run = wait.found->position > 0;
    restores.push_back({.hop_index = wait.hop_index,
                        .slabs = {wait.found->slab.ref},
                        .tokens = positions_[wait.found->position].tokens,
                        .last_step = has_run ? step_ : step_ - 1});
  }
  return restores;
}

std::vector<LeaseId> FragmentRepair::Leases() const {
  std::vector<LeaseId> leases;
  for (const Wait& wait : waits_) {
    if (wait.found.has_value()) leases.push_back(wait.lease);
  }
  return leases;
}

// Also those not answered yet: a fragment may be pinned by now, and a late answer finds no wait.
void FragmentRepair::End(const std::string& bad_slab) {
  for (const Wait& wait : waits_) {
    if (wait.answered && !wait.found.has_value()) continue;
    EndLease end{.lease = wait.lease, .bad_slabs = {}};
    if (wait.found.has_value() && SlabName(wait.found->slab.ref) == bad_slab) {
      end.bad_slabs.push_back(wait.found->slab.ref);
    }
    effects_.emplace_back(std::move(end));
  }
  waits_.clear();
}

}  // namespace kvmesh::router
