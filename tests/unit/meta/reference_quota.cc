// Quotas of namespaces in the reference model.
#include <algorithm>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/meta/arbiter_values.h"
#include "tests/unit/meta/reference_model.h"

namespace kvmesh::meta::testing {

uint64_t ReferenceModel::HeldBy(const slab::KeyNamespace& name_space) const {
  uint64_t bytes = 0;
  for (const Thing& thing : things_) {
    if (thing.name_space != name_space) continue;
    for (const MSlab& slab : thing.slabs) {
      if (slab.state != SlabState::kDeleting) bytes += slab.bytes;
    }
  }
  for (const MReservation& it : reservations_) {
    if (it.state != MReservation::kWaiting || it.request.key_namespace != name_space) continue;
    bytes += BytesOf(it.request);
  }
  return bytes;
}

uint64_t ReferenceModel::BytesOf(const Reserve& command) {
  uint64_t bytes = 0;
  for (const RangeBytes& range : command.ranges) {
    bytes += (range.size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  }
  return bytes;
}

uint64_t ReferenceModel::LearnQuota(const Reserve& command) {
  const std::string& model = command.key_namespace.model_fp;
  if (!command.namespace_bytes_max.has_value()) return quotas_.contains(model) ? quotas_[model] : 0;
  const bool in_use = absl::c_any_of(
      things_, [&](const Thing& thing) { return thing.name_space == command.key_namespace; });
  if (in_use) quotas_[model] = *command.namespace_bytes_max;
  return *command.namespace_bytes_max;
}

bool ReferenceModel::IsOverQuota(const Reserve& command, uint64_t quota) {
  const uint64_t bytes = BytesOf(command);
  if (quota == 0 || HeldBy(command.key_namespace) + bytes <= quota) return false;
  ExpectAnswer(command.ticket, "RESOURCE_EXHAUSTED QUOTA");
  if (bytes <= quota) {
    const auto low = static_cast<uint64_t>(static_cast<double>(quota) * limits_.low_watermark);
    TrimTo(command.key_namespace, std::min(low, quota - bytes));
  }
  return true;
}

void ReferenceModel::TrimAbove(const slab::KeyNamespace& name_space, uint64_t quota) {
  quotas_[name_space.model_fp] = quota;
  const auto share = [quota](double of) {
    return static_cast<uint64_t>(static_cast<double>(quota) * of);
  };
  if (quota == 0 || HeldBy(name_space) <= share(limits_.high_watermark)) return;
  TrimTo(name_space, share(limits_.low_watermark));
}

void ReferenceModel::TrimTo(const slab::KeyNamespace& name_space, uint64_t target) {
  const auto order = [this](const Thing& thing) {
    const MSlab& first = thing.slabs.front();
    const SlabName& name = first.facts.name;
    return std::tuple(thing.kind == Kind::kRow, thing.last_used_ms, thing.key, name.write_id,
                      name.layers.begin, name.layers.end, stores_.at(first.store).slot);
  };
  while (HeldBy(name_space) > target) {
    Thing* victim = nullptr;
    for (Thing& thing : things_) {
      if (thing.kind != Kind::kRow && thing.kind != Kind::kFragment) continue;
      if (thing.name_space != name_space || !thing.leases.empty()) continue;
      if (victim == nullptr || order(thing) < order(*victim)) victim = &thing;
    }
    if (victim == nullptr) return;
    Doom(victim);
  }
}

}  // namespace kvmesh::meta::testing
