#include "services/meta/core/quotas.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "services/meta/core/errors.h"

namespace kvmesh::meta {
namespace {

constexpr size_t kCandidatesMax = 4096;

}  // namespace

uint64_t Quotas::Learn(const Reserve& command) {
  const std::optional<NamespaceId> id = ledger_.namespaces.Find(command.key_namespace);
  if (command.namespace_bytes_max.has_value()) {
    if (id.has_value()) ledger_.namespaces.set_bytes_max(*id, *command.namespace_bytes_max);
    return *command.namespace_bytes_max;
  }
  return id.has_value() ? ledger_.namespaces.bytes_max(*id) : 0;
}

absl::Status Quotas::Admit(const slab::KeyNamespace& key_namespace, uint64_t quota,
                           uint64_t bytes) {
  if (quota == 0) return absl::OkStatus();
  if (bytes > quota) {
    return Refusal(absl::ResourceExhaustedError(absl::StrCat(
                       "the write takes ", bytes, " bytes; its namespace may have ", quota)),
                   "QUOTA");
  }
  const std::optional<NamespaceId> id = ledger_.namespaces.Find(key_namespace);
  const uint64_t held = id.has_value() ? Held(*id) : 0;
  if (held + bytes <= quota) return absl::OkStatus();
  TrimTo(key_namespace, std::min(LowOf(quota, ledger_.limits()), quota - bytes));
  return RefusalForNow(
      absl::ResourceExhaustedError(absl::StrCat("the write takes ", bytes, " bytes; its namespace ",
                                                "has ", held, " of ", quota)),
      "QUOTA");
}

void Quotas::OnReserved(NamespaceId id, uint64_t quota) {
  ledger_.namespaces.set_bytes_max(id, quota);
  if (quota == 0 || Held(id) <= HighOf(quota, ledger_.limits())) return;
  TrimTo(ledger_.namespaces.Get(id), LowOf(quota, ledger_.limits()));
}

void Quotas::GoOn() {
  if (!trims_.empty() && Step(trims_.front())) trims_.pop_front();
}

// What stays, and what may still come.
uint64_t Quotas::Held(NamespaceId id) const {
  return ledger_.slabs.BytesOf(id) + ledger_.namespaces.waiting_bytes(id);
}

void Quotas::TrimTo(const slab::KeyNamespace& key_namespace, uint64_t target) {
  const auto known = absl::c_find_if(
      trims_, [&](const Trim& trim) { return trim.key_namespace == key_namespace; });
  if (known != trims_.end()) {
    known->target = std::min(known->target, target);
    return;
  }
  trims_.push_back({.key_namespace = key_namespace, .target = target});
  if (trims_.size() == 1) GoOn();
}

bool Quotas::Step(Trim& trim) {
  const std::optional<NamespaceId> id = ledger_.namespaces.Find(trim.key_namespace);
  if (!id.has_value() || Held(*id) <= trim.target) return true;
  if (!trim.walked) {
    trim.walked =
        trim.walk.Step(ledger_, id, [this, &trim](GroupIndex group) { Keep(trim, group); });
    if (!trim.walked) return false;
    absl::c_sort(trim.candidates, [](const auto& a, const auto& b) { return b < a; });
  }
  for (; !trim.candidates.empty() && Held(*id) > trim.target; trim.candidates.pop_back()) {
    const Candidate& next = trim.candidates.back();
    // It may have been used since, or be gone.
    if (OrderOf(next.group) != next.order) continue;
    if (ledger_.evictions_left == 0) return false;
    --ledger_.evictions_left;
    ledger_.Count("quota_evictions");
    rows_.Doom(next.group, GoneCause::kQuota);
  }
  if (Held(*id) <= trim.target || !trim.more) return true;
  trim = {.key_namespace = trim.key_namespace, .target = trim.target};
  return false;
}

// The first to go of all that were seen.
void Quotas::Keep(Trim& trim, GroupIndex group) const {
  const std::optional<Order> order = OrderOf(group);
  if (!order.has_value()) return;
  std::vector<Candidate>& heap = trim.candidates;
  heap.push_back({.order = *order, .group = group});
  std::push_heap(heap.begin(), heap.end());
  if (heap.size() <= kCandidatesMax) return;
  std::pop_heap(heap.begin(), heap.end());
  heap.pop_back();
  trim.more = true;
}

// None: it is not there, or may not go.
std::optional<Quotas::Order> Quotas::OrderOf(GroupIndex index) const {
  const SlabTable& slabs = ledger_.slabs;
  if (!slabs.has_group(index)) return std::nullopt;
  const Group& group = slabs.group(index);
  const bool may_go = group.kind == GroupKind::kRow || group.kind == GroupKind::kFragment;
  if (!may_go || group.leases > 0) return std::nullopt;
  const Slab& first = slabs.slab(group.first_slab);
  return Order{group.kind == GroupKind::kRow,
               group.last_used_ms,
               group.key,
               first.write_id,
               first.layer_begin,
               first.layer_end,
               first.store};
}

}  // namespace kvmesh::meta
