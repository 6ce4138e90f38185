#include "tests/unit/meta/random_commands.h"

#include <utility>

namespace kvmesh::meta::testing {
namespace {

constexpr size_t kEverything = 1000;

}  // namespace

std::vector<Step> RandomCommands::Opening() {
  std::vector<Step> steps;
  for (uint32_t store = 0; store < kStores; ++store) {
    StoreHello hello = std::get<StoreHello>(Hello());
    hello.uid = IdOf<StoreUid>(store);
    hello.tier = store == 2 ? Tier::kDisk : Tier::kRamFile;
    hello.seen.reset();
    streams_[store] = hello.stream;
    steps.push_back({absl::Milliseconds(1), hello});
    steps.push_back({absl::Milliseconds(1), StoreInventory{.stream = hello.stream, .last = true}});
  }
  return steps;
}

Step RandomCommands::Next(const Arbiter& arbiter, MonoTime now) {
  return {Pause(), RandomCommand(arbiter, now)};
}

absl::Duration RandomCommands::Pause() {
  const uint32_t roll = Int(1, 1000);
  if (roll > 60) return absl::Milliseconds(Int(1, 20));
  if (roll > 20) return absl::Seconds(1);
  if (roll > 9) return absl::Seconds(6);
  if (roll > 2) return absl::Seconds(Int(14, 32));
  return absl::Seconds(roll == 2 ? 70 : 610);
}

Command RandomCommands::RandomCommand(const Arbiter& arbiter, MonoTime now) {
  const uint32_t roll = Int(1, 100);
  if (roll <= 58) return OfWriter(arbiter, now);
  if (roll <= 80) return OfReader(arbiter, now);
  return OfStore(arbiter, now);
}

// ---- Writers, and what comes of it ----

Command RandomCommands::OfWriter(const Arbiter& arbiter, MonoTime now) {
  const uint32_t roll = Int(1, 58);
  if (roll <= 14) return RandomReserve(ReservationKind::kRow);
  if (roll <= 18) return RandomReserve(ReservationKind::kFragment);
  if (roll <= 38) return Arrival(arbiter, now);
  if (roll <= 44) return Stray();
  if (roll <= 53) return Acknowledgement(arbiter, now);
  if (roll <= 56) return AgainAnnounced(arbiter, now);
  const std::vector<ReservationSnapshot> live = arbiter.ListReservations(0, kEverything, now);
  CancelReservation cancel{.ticket = Ticket{next_ticket_++}};
  if (OneIn(3)) {
    cancel.which = IdOf<RequestId>(Int(next_request_ > 4 ? next_request_ - 4 : 0, next_request_));
  } else {
    cancel.which = live.empty() ? IdOf<WriteId>(Int(1, next_write_)) : Pick(live).write_id;
  }
  return cancel;
}

LayerRange RandomCommands::RandomLayers(uint32_t key) {
  const uint32_t layers = LayersOf(NamespaceOfKey(key));
  const uint32_t begin = Int(0, layers - 1);
  return {begin, Int(begin + 1, layers)};
}

Command RandomCommands::RandomReserve(ReservationKind kind) {
  const uint32_t key = Int(0, kKeys - 1);
  const uint32_t layers = LayersOf(NamespaceOfKey(key));
  Reserve reserve{.ticket = Ticket{next_ticket_++},
                  .request = IdOf<RequestId>(OneIn(8) ? Int(1, next_request_) : next_request_++),
                  .kind = kind,
                  .key_namespace = NamespaceOf(NamespaceOfKey(key)),
                  .key = KeyOf(key),
                  .model_layers = OneIn(60) ? layers + 1 : layers,
                  .reason = static_cast<slab::SaveReason>(Int(1, 5)),
                  .room_wait = Wait(),
                  .write_id = IdOf<WriteId>(OneIn(30) ? Int(1, next_write_) : next_write_++)};
  if (OneIn(6)) reserve.tier = static_cast<Tier>(Int(0, 2));
  if (OneIn(5)) reserve.namespace_bytes_max = OneIn(3) ? 0 : Int(6, 60) * kPageBytes;
  const auto bytes = [this] {
    return (OneIn(12) ? Int(12, 50) : Int(1, 6)) * kPageBytes - Int(0, 9);
  };
  if (kind == ReservationKind::kFragment) {
    reserve.ranges.push_back({RandomLayers(key), bytes()});
    return reserve;
  }
  for (uint32_t begin = 0; begin < layers;) {
    const uint32_t end = OneIn(3) ? layers : begin + 1;
    reserve.ranges.push_back({{begin, end}, bytes()});
    begin = end;
  }
  if (OneIn(60)) reserve.ranges.pop_back();
  return reserve;
}

SlabFacts RandomCommands::Remember(const StoreUid& store, const SlabSpec& spec) {
  SlabFacts facts = FactsOf(spec);
  announced_[{NumberOf(store), Describe(facts.name)}] = spec;
  return facts;
}

// What a writer was allowed to write arrives.
Command RandomCommands::Arrival(const Arbiter& arbiter, MonoTime now) {
  const std::vector<ReservationSnapshot> live = arbiter.ListReservations(0, kEverything, now);
  if (live.empty()) return Tick{};
  const ReservationSnapshot& one = Pick(live);
  if (one.state == ReservationState::kWaitingForRoom) return Tick{};  // nobody knows its write_id
  const ReservedRange& range = Pick(one.ranges);
  const StoreUid store = OneIn(30) ? IdOf<StoreUid>(Int(0, kStores - 1)) : range.store;
  const SlabSpec spec{.key = NumberOf(one.key),
                      .tokenisation = OneIn(40) ? 1U : 0U,
                      .layers = range.layers,
                      .write = NumberOf(one.write_id),
                      .pages = OneIn(40) ? 60U : 1U,
                      .cut_points = OneIn(4) ? Int(0, 7) : 7,
                      .says_layers = !OneIn(10),
                      .inside_character = OneIn(60)};
  return SlabAnnounced{.stream = StreamOf(store), .slab = Remember(store, spec)};
}

// A slab nobody has asked for: of an earlier arbiter, or of a write that ended.
Command RandomCommands::Stray() {
  const uint32_t key = Int(0, kKeys - 1);
  const SlabSpec spec{.key = key,
                      .tokenisation = Int(0, 1),
                      .layers = RandomLayers(key),
                      .write = OneIn(3) ? Int(1, next_write_) : next_write_++,
                      .pages = OneIn(20) ? 20 : Int(1, 4),
                      .cut_points = Int(0, 7),
                      .says_layers = !OneIn(4),
                      .inside_character = OneIn(20),
                      .idle = absl::Milliseconds(Int(0, 2000000))};
  const StoreUid store = IdOf<StoreUid>(Int(0, kStores - 1));
  SlabFacts facts = Remember(store, spec);
  if (OneIn(80)) facts.model_layers = LayersOf(NamespaceOfKey(key)) + 1;
  return SlabAnnounced{.stream = StreamOf(store), .slab = facts};
}

std::vector<RowSnapshot> RandomCommands::Rows(const Arbiter& arbiter, MonoTime now) {
  return arbiter.ListRows(std::nullopt, kEverything, {.rows_only = false}, now);
}

std::vector<PlacedSlab> RandomCommands::Slabs(const Arbiter& arbiter, MonoTime now,
                                              SlabState state) {
  std::vector<PlacedSlab> slabs;
  for (const RowSnapshot& row : Rows(arbiter, now)) {
    for (const PlacedSlab& slab : row.slabs) {
      if (slab.state == state) slabs.push_back(slab);
    }
  }
  return slabs;
}

Command RandomCommands::Acknowledgement(const Arbiter& arbiter, MonoTime now) {
  const bool deleted = !OneIn(8);
  const std::vector<PlacedSlab> slabs =
      Slabs(arbiter, now, deleted ? SlabState::kDeleting : SlabState::kLive);
  if (slabs.empty()) return Tick{};
  const PlacedSlab& slab = Pick(slabs);
  const StreamId stream = StreamOf(slab.store);
  if (deleted) return SlabRemoved{.stream = stream, .name = slab.name};
  if (OneIn(2)) return SlabVerified{.stream = stream, .name = slab.name, .sound = OneIn(2)};
  return SlabRemoved{.stream = stream, .name = slab.name, .cause = RemovalCause::kQuarantined};
}

Command RandomCommands::AgainAnnounced(const Arbiter& arbiter, MonoTime now) {
  const std::vector<PlacedSlab> slabs = Slabs(arbiter, now, SlabState::kLive);
  if (slabs.empty()) return Tick{};
  const PlacedSlab& slab = Pick(slabs);
  SlabSpec spec = announced_[{NumberOf(slab.store), Describe(slab.name)}];
  if (OneIn(8)) spec.bytes_variant = 1 - spec.bytes_variant;
  return SlabAnnounced{.stream = StreamOf(slab.store), .slab = Remember(slab.store, spec)};
}

// ---- Readers and operators ----

Command RandomCommands::OfReader(const Arbiter& arbiter, MonoTime now) {
  const std::vector<RowSnapshot> rows = Rows(arbiter, now);
  const uint32_t roll = Int(1, 22);
  const Ticket ticket{next_ticket_++};
  const LeaseId lease = IdOf<LeaseId>(OneIn(4) ? Int(1, 10) : next_lease_++);
  const LeaseId some_lease =
      IdOf<LeaseId>(OneIn(2) ? Int(1, 10) : Int(next_lease_ - 4, next_lease_));
  if (roll <= 5 && !rows.empty()) {
    const RowSnapshot& row = Pick(rows);
    return Checkout{.ticket = ticket,
                    .key = row.key,
                    .write_id = row.write_id(),
                    .lease = lease,
                    .or_held = NumberOf(lease) % 3 == 0};
  }
  if (roll <= 8) {
    Checkin checkin{.ticket = ticket, .lease = some_lease};
    const std::vector<PlacedSlab> live = Slabs(arbiter, now, SlabState::kLive);
    if (OneIn(4) && !live.empty()) checkin.bad_slabs.push_back(Pick(live).name);
    return checkin;
  }
  if (roll <= 10) {
    return Renew{
        .ticket = ticket,
        .leases = {some_lease, lease},
        .writes = {IdOf<WriteId>(Int(next_write_ > 6 ? next_write_ - 6 : 1, next_write_))}};
  }
  if (roll <= 14 && !rows.empty()) {
    const RowSnapshot& row = Pick(rows);
    return RowHit{.row = row.id, .key = row.key};
  }
  const uint32_t key = Int(0, kKeys - 1);
  if (roll <= 17) {
    const uint32_t name_space = OneIn(10) ? 1 - NamespaceOfKey(key) : NamespaceOfKey(key);
    return AwaitKey{.ticket = ticket,
                    .key_namespace = NamespaceOf(name_space),
                    .key = KeyOf(key),
                    .wait = Wait()};
  }
  if (roll <= 20) {
    AwaitFragment await{.ticket = ticket,
                        .key_namespace = NamespaceOf(NamespaceOfKey(key)),
                        .layers = RandomLayers(key),
                        .appear_wait = Wait(),
                        .upload_wait = Wait(),
                        .lease = IdOf<LeaseId>(next_lease_++)};
    for (const uint32_t at : {key, (key + 2) % kKeys}) {
      const SlabFacts facts = FactsOf({.key = at, .layers = await.layers});
      await.positions.push_back({.key = facts.name.key,
                                 .tokens_sha256 = facts.tokens_sha256,
                                 .token_count = facts.token_count});
    }
    return await;
  }
  if (roll == 21) return Abandon{.ticket = Ticket{Int(1, static_cast<uint32_t>(next_ticket_))}};
  EvictRows evict{.ticket = ticket, .dry_run = OneIn(2), .idle_min = Wait()};
  if (!OneIn(6)) evict.keys = {KeyOf(key), KeyOf(Int(0, kKeys - 1))};
  if (OneIn(6)) evict.key_namespace = NamespaceOf(NamespaceOfKey(key));
  return evict;
}

// ---- Stores ----

Command RandomCommands::OfStore(const Arbiter& arbiter, MonoTime now) {
  const uint32_t roll = Int(1, 20);
  if (roll <= 2) {
    StoreHello hello = std::get<StoreHello>(Hello());
    if (!OneIn(4)) streams_[NumberOf(hello.uid)] = hello.stream;
    return hello;
  }
  if (roll <= 8) return Inventory(arbiter, now);
  if (roll <= 15) return Heartbeat(arbiter, now);
  const StreamId stream = streams_[Int(0, kStores - 1)];
  if (roll == 16) return StorePong{.stream = stream};
  if (roll == 17 && OneIn(3)) return StoreGone{.stream = stream};
  return Tick{};
}

Command RandomCommands::Hello() {
  const uint32_t store = Int(0, kStores - 1);
  StoreHello hello{.stream = StreamId{next_stream_++},
                   .uid = IdOf<StoreUid>(store),
                   .boot = IdOf<InstanceId>(Int(1, 2)),
                   .address = "store:1",
                   .node = "node",
                   .tier = store == 2 ? Tier::kDisk : Tier::kRamFile,
                   .budget_bytes = (OneIn(8) ? 12 : 24 + 10 * store) * kPageBytes};
  if (OneIn(3)) hello.seen = Incarnation{.number = Int(1, 9), .id = IdOf<InstanceId>(Int(7, 8))};
  return hello;
}

Command RandomCommands::Inventory(const Arbiter& arbiter, MonoTime now) {
  std::vector<StoreUid> saying;
  for (const StoreSnapshot& store : arbiter.Stores()) {
    if (store.state == StoreState::kInventory) saying.push_back(store.uid);
  }
  if (saying.empty() && !OneIn(20)) return Tick{};
  const StoreUid uid = saying.empty() ? IdOf<StoreUid>(Int(0, kStores - 1)) : Pick(saying);
  StoreInventory page{.stream = StreamOf(uid), .last = !OneIn(3)};
  for (const RowSnapshot& row : Rows(arbiter, now)) {
    for (const PlacedSlab& slab : row.slabs) {
      if (slab.store != uid || OneIn(10)) continue;
      const auto known = announced_.find({NumberOf(uid), Describe(slab.name)});
      if (known != announced_.end()) page.slabs.push_back(FactsOf(known->second));
    }
  }
  return page;
}

Command RandomCommands::Heartbeat(const Arbiter& arbiter, MonoTime now) {
  StoreHeartbeat heartbeat{.stream = streams_[Int(0, kStores - 1)]};
  if (OneIn(20)) heartbeat.quarantined_bytes = Int(0, 5) * kPageBytes;
  for (const ReservationSnapshot& one : arbiter.ListReservations(0, kEverything, now)) {
    if (OneIn(2)) heartbeat.open_puts.push_back(one.write_id);
  }
  return heartbeat;
}

}  // namespace kvmesh::meta::testing
