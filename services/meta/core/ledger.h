// What the parts of the arbiter share: the tables, the stores, the effects that are coming out, and
// the moment at which it all happens. No rules of its own. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/meta/core/cancelled_writes.h"
#include "services/meta/core/commands.h"
#include "services/meta/core/effects.h"
#include "services/meta/core/leases.h"
#include "services/meta/core/lru_index.h"
#include "services/meta/core/namespaces.h"
#include "services/meta/core/options.h"
#include "services/meta/core/slab_table.h"

namespace kvmesh::meta {

// What is done with each slab of a store, some at a time (Attachments).
enum class StorePass : uint8_t {
  kNone,
  kDropUnnamed,  // its inventory is complete: the live slabs that it did not name are gone
  kSettle,       // it has begun to serve: deletes are sent again, fragments looked at again
  kReconsider,   // it has ceased to: fragments are looked at again
  kForget,       // all are gone
};

struct Store {
  bool in_use = false;  // false: forgotten; the slot is free
  StoreUid uid;
  InstanceId boot;
  std::string address;
  std::string node;
  Tier tier = Tier::kRam;
  StoreState state = StoreState::kLost;
  StreamId stream{0};
  uint64_t budget_bytes = 0;
  uint64_t quarantined_bytes = 0;
  uint64_t waiting_bytes = 0;  // of reservations that wait for room here
  MonoTime last_heard;
  MonoTime lost_at;
  uint16_t inventory = 0;  // the number of the one it says, or said last
  StorePass pass = StorePass::kNone;
  SlabIndex pass_next = 0;
  bool making_room = false;  // on its way down to the low watermark
  LruIndex lru;
  // Another process says that it is this store, while this one is asked whether it still lives.
  std::optional<StoreHello> rival;
  MonoTime rival_wins_at;
};

struct Ledger {
  explicit Ledger(ArbiterOptions arbiter_options)
      : options(std::move(arbiter_options)),
        incarnation{.number = 1, .id = options.incarnation_id},
        cancelled(options.limits.cancelled_memory, options.limits.cancelled_max) {}

  template <typename E>
  void Emit(E effect) {
    effects.emplace_back(std::move(effect));
  }
  void Answer(Ticket ticket, meta::Answer answer) {
    Emit(Reply{.ticket = ticket, .answer = std::move(answer)});
  }
  Store& StoreAt(StoreSlot slot) { return stores[static_cast<size_t>(slot)]; }
  const Store& StoreAt(StoreSlot slot) const { return stores[static_cast<size_t>(slot)]; }
  bool Serves(StoreSlot slot) const { return StoreAt(slot).state == StoreState::kServing; }
  void Changed(const Sha256Digest& key) { changed_keys.push_back(key); }
  void RoomChanged(StoreSlot slot) { stores_to_check.push_back(slot); }
  void Count(absl::string_view event) { ++events[event]; }
  const ArbiterLimits& limits() const { return options.limits; }

  const ArbiterOptions options;
  Incarnation incarnation;
  MonoTime now;
  std::vector<Effect> effects;

  SlabTable slabs;
  Namespaces namespaces;
  std::deque<Store> stores;  // by slot
  Leases leases;
  CancelledWrites cancelled;
  // Of live slabs outside rows whose cut_points_known is set.
  absl::flat_hash_map<SlabIndex, std::vector<slab::CutPoint>> cut_points;
  std::map<absl::string_view, uint64_t> events;  // names are literals

  // What this command has moved, to be settled before it ends.
  std::vector<Sha256Digest> changed_keys;
  std::vector<StoreSlot> stores_to_check;
  size_t evictions_left = 0;    // of this command; what goes beyond is a later one's
  bool stores_changed = false;  // one has begun or ceased to serve: every waiter looks again
};

}  // namespace kvmesh::meta
