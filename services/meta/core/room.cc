#include "services/meta/core/room.h"

#include <algorithm>
#include <utility>

#include "services/meta/core/errors.h"

namespace kvmesh::meta {
namespace {

uint64_t Above(uint64_t bytes, uint64_t taken) {
  return bytes > taken ? bytes - taken : 0;
}

}  // namespace

// What eviction cannot free: writes, leased rows, quarantine.
uint64_t Room::Fixed(StoreSlot slot) const {
  const Store& store = ledger_.StoreAt(slot);
  const StoreAccount account = ledger_.slabs.Account(slot);
  return account.reserved_bytes + store.waiting_bytes + store.quarantined_bytes +
         Above(account.live_bytes, store.lru.bytes());
}

uint64_t Room::Obtainable(StoreSlot slot) const {
  return Above(ledger_.StoreAt(slot).budget_bytes, Fixed(slot));
}

uint64_t Room::Free(StoreSlot slot) const {
  const Store& store = ledger_.StoreAt(slot);
  return Above(store.budget_bytes, ledger_.slabs.Account(slot).total() + store.quarantined_bytes);
}

absl::Status Room::Choose(absl::Span<const Tier> tiers, std::vector<WritePart>* parts) const {
  bool any_store = false;
  for (const Tier tier : tiers) {
    std::map<StoreSlot, uint64_t> room;
    for (const StoreSlot slot : Serving(tier)) room[slot] = Obtainable(slot);
    if (Spread(room, parts)) return absl::OkStatus();
    any_store = any_store || !room.empty();
  }
  if (!any_store) {
    return RefusalForNow(absl::UnavailableError("no store of the save's tiers is attached"),
                         "NO_STORE", absl::Seconds(1));
  }
  uint64_t bytes = 0;
  for (const WritePart& part : *parts) bytes += part.bytes();
  for (const Tier tier : tiers) {
    std::map<StoreSlot, uint64_t> budgets;
    for (const StoreSlot slot : Serving(tier)) budgets[slot] = ledger_.StoreAt(slot).budget_bytes;
    if (!Spread(budgets, parts)) continue;
    return RefusalForNow(absl::ResourceExhaustedError(
                             absl::StrCat("no tier can make room for ", bytes, " bytes now")),
                         "NO_ROOM", absl::Seconds(1));
  }
  return Refusal(absl::ResourceExhaustedError(absl::StrCat(
                     "the write takes ", bytes, " bytes, more than the budgets of any tier hold")),
                 "TOO_LARGE");
}

std::vector<StoreSlot> Room::Serving(Tier tier) const {
  std::vector<StoreSlot> slots;
  for (size_t i = 0; i < ledger_.stores.size(); ++i) {
    const Store& store = ledger_.stores[i];
    if (store.state != StoreState::kServing || store.tier != tier) continue;
    slots.push_back(StoreSlot{static_cast<uint16_t>(i)});
  }
  return slots;
}

// Whether the parts fit into this room; then each has its store.
bool Room::Spread(std::map<StoreSlot, uint64_t> room, std::vector<WritePart>* parts) {
  if (room.empty()) return false;
  std::optional<StoreSlot> last;
  for (WritePart& part : *parts) {
    if (!last.has_value() || room[*last] < part.bytes()) {
      last = std::max_element(room.begin(), room.end(), [](const auto& a, const auto& b) {
               return a.second < b.second;
             })->first;
    }
    if (room[*last] < part.bytes()) return false;
    room[*last] -= part.bytes();
    part.store = *last;
  }
  return true;
}

void Room::Evict(StoreSlot slot) {
  Store& store = ledger_.StoreAt(slot);
  const bool on_its_way = std::exchange(store.making_room, false);
  if (store.state != StoreState::kServing) return;
  const auto staying = [this, &store, slot] {
    const StoreAccount account = ledger_.slabs.Account(slot);
    return account.live_bytes + account.reserved_bytes + store.waiting_bytes +
           store.quarantined_bytes;
  };
  const uint64_t high = HighOf(store.budget_bytes, ledger_.limits());
  if (staying() <= high && !on_its_way) return;
  const uint64_t low = LowOf(store.budget_bytes, ledger_.limits());
  const uint64_t fixed = Fixed(slot);
  uint64_t target = low;
  if (fixed > low) target = fixed <= high ? high : store.budget_bytes;
  while (staying() > target) {
    const std::optional<GroupIndex> victim = store.lru.Oldest();
    if (!victim.has_value()) return;
    if (ledger_.evictions_left == 0) {
      store.making_room = true;
      return;
    }
    --ledger_.evictions_left;
    ledger_.Count(ledger_.slabs.group(*victim).kind == GroupKind::kRow ? "rows_evicted"
                                                                       : "fragments_evicted");
    rows_.Doom(*victim, GoneCause::kEvicted);
  }
}

void Room::GoOn() {
  for (size_t i = 0; i < ledger_.stores.size(); ++i) {
    if (ledger_.stores[i].making_room) ledger_.RoomChanged(StoreSlot{static_cast<uint16_t>(i)});
  }
}

bool Room::HasMore() const {
  return std::any_of(ledger_.stores.begin(), ledger_.stores.end(),
                     [](const Store& store) { return store.making_room; });
}

}  // namespace kvmesh::meta
