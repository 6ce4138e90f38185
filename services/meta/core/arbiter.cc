#include "services/meta/core/arbiter.h"

#include <algorithm>

#include "absl/algorithm/container.h"

namespace kvmesh::meta {

Arbiter::Arbiter(const ArbiterOptions& options)
    : ledger_(options),
      rows_(ledger_),
      room_(ledger_, rows_),
      quotas_(ledger_, rows_),
      reservations_(ledger_, rows_, room_, quotas_),
      attachments_(ledger_, rows_, reservations_),
      readers_(ledger_, rows_, reservations_, attachments_),
      evictions_(ledger_, rows_) {}

// What is due comes first, so that the answer does not depend on how soon Tick was called; and
// again afterwards, for what the command itself made due (a wait of no time).
std::vector<Effect> Arbiter::Apply(const Command& command, MonoTime now) {
  ledger_.now = std::max(ledger_.now, now);
  ledger_.evictions_left = ledger_.limits().step_slabs;
  RunTimers();
  std::visit([this](const auto& it) { Do(it); }, command);
  Settle();
  RunTimers();
  return std::exchange(ledger_.effects, {});
}

MonoTime Arbiter::NextTimer() const {
  return std::min({readers_.Next(), reservations_.Next(), rows_.NextFragmentEnd(),
                   rows_.NextUseReport(), attachments_.Next()});
}

void Arbiter::RunTimers() {
  if (ledger_.now < NextTimer()) return;
  readers_.Expire();
  reservations_.Expire();
  rows_.ExpireFragments();
  attachments_.Tick();
  rows_.ReportUse();
  Settle();
}

// Promotions, evictions, grants and waiters follow from what has changed, until nothing does. Ends:
// a promotion leaves fewer fragments, an eviction fewer slabs to evict, a grant fewer that wait.
void Arbiter::Settle() {
  std::vector<Sha256Digest> settled;
  while (!ledger_.changed_keys.empty() || !ledger_.stores_to_check.empty()) {
    const std::vector<Sha256Digest> keys = std::exchange(ledger_.changed_keys, {});
    for (const Sha256Digest& key : keys) rows_.Promote(key);
    settled.insert(settled.end(), keys.begin(), keys.end());
    if (!ledger_.changed_keys.empty()) continue;
    std::vector<StoreSlot> stores = std::exchange(ledger_.stores_to_check, {});
    absl::c_sort(stores);
    stores.erase(std::unique(stores.begin(), stores.end()), stores.end());
    for (const StoreSlot store : stores) room_.Evict(store);
    if (!stores.empty()) reservations_.GrantWaiting();
  }
  if (std::exchange(ledger_.stores_changed, false)) {
    readers_.SettleAll();
  } else {
    readers_.Settle(settled);
  }
}

bool Arbiter::HasMore() const {
  return attachments_.HasMore() || room_.HasMore() || quotas_.HasMore() || evictions_.HasMore();
}

void Arbiter::Do(const Abandon& command) {
  reservations_.Abandon(command.ticket);
  readers_.Abandon(command.ticket);
  evictions_.Abandon(command.ticket);
}

void Arbiter::Do(const GoOn&) {
  attachments_.GoOn();
  room_.GoOn();
  quotas_.GoOn();
  evictions_.GoOn();
}

// ---- Queries ----

std::vector<RowSnapshot> Arbiter::ListRows(std::optional<RowId> after, size_t count_max,
                                           const RowFilter& filter, MonoTime now) const {
  std::vector<RowSnapshot> listed;
  const auto add = [&](GroupIndex group) {
    if (filter.rows_only && ledger_.slabs.group(group).kind != GroupKind::kRow) return;
    listed.push_back(rows_.Snapshot(group));
    listed.back().idle += now - ledger_.now;
  };
  const GroupIndex first = after.has_value() ? static_cast<GroupIndex>(*after) + 1 : 0;
  if (filter.key.has_value()) {
    std::vector<GroupIndex> groups;
    for (GroupIndex i = ledger_.slabs.FirstOfKey(*filter.key); i != kNone;
         i = ledger_.slabs.group(i).next_of_key) {
      if (i >= first) groups.push_back(i);
    }
    absl::c_sort(groups);
    for (size_t i = 0; i < groups.size() && listed.size() < count_max; ++i) add(groups[i]);
    return listed;
  }
  for (GroupIndex i = first; i < ledger_.slabs.group_bound() && listed.size() < count_max; ++i) {
    if (ledger_.slabs.has_group(i)) add(i);
  }
  return listed;
}

std::vector<ReservationSnapshot> Arbiter::ListReservations(uint64_t after, size_t count_max,
                                                           MonoTime now) const {
  std::vector<ReservationSnapshot> listed = reservations_.List(after, count_max);
  for (ReservationSnapshot& one : listed) {
    one.age += now - ledger_.now;
    one.expires_in -= now - ledger_.now;
  }
  return listed;
}

std::vector<StoreSnapshot> Arbiter::Stores() const {
  return attachments_.List();
}

ArbiterCounts Arbiter::Counts() const {
  ArbiterCounts counts{.rows = rows_.rows(),
                       .fragments = rows_.fragments(),
                       .reservations = reservations_.size(),
                       .leases = ledger_.leases.size(),
                       .waiters = readers_.waiters(),
                       .namespaces = ledger_.namespaces.size()};
  for (const auto& [name, count] : ledger_.events) counts.events.emplace(name, count);
  return counts;
}

}  // namespace kvmesh::meta
