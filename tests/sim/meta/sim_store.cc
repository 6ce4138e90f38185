#include "tests/sim/meta/sim_store.h"

#include <algorithm>
#include <utility>

#include "tests/sim/meta/cluster.h"
#include "tests/unit/meta/arbiter_values.h"

namespace kvmesh::meta::sim {

using testing::Describe;
using testing::IdOf;

SimStore::SimStore(Cluster& cluster, const SimStoreOptions& options)
    : cluster_(cluster), options_(options), uid_(IdOf<StoreUid>(options.number)) {
  AttachLater();
}

uint64_t SimStore::Occupied() const {
  uint64_t bytes = 0;
  for (const auto& [name, slab] : slabs_) bytes += slab.facts.size_bytes;
  for (const auto& [name, put] : puts_) bytes += put.facts.size_bytes;
  return bytes;
}

std::map<std::string, uint64_t> SimStore::Contents() const {
  std::map<std::string, uint64_t> contents;
  for (const auto& [name, slab] : slabs_) contents[name] = slab.facts.size_bytes;
  return contents;
}

// ---- Slabs ----

void SimStore::Put(const SlabFacts& facts, absl::Duration time, std::function<void(bool)> done) {
  const std::string name = Describe(facts.name);
  if (!up_ || slabs_.contains(name) || puts_.contains(name)) {
    done(false);
    return;
  }
  if (Occupied() + facts.size_bytes > options_.budget_bytes) {
    ++refused_puts_;
    done(false);
    return;
  }
  puts_[name] = {.facts = facts};
  cluster_.events().After(time, [this, name, life = life_, done = std::move(done)] {
    if (life != life_) {
      done(false);
      return;
    }
    const OpenPut put = puts_.at(name);
    puts_.erase(name);
    if (put.aborted) {
      Send(SlabRemoved{.name = put.facts.name});
      done(false);
      return;
    }
    slabs_[name] = {.facts = put.facts};
    cluster_.Published(uid_, put.facts);
    Send(SlabAnnounced{.slab = put.facts});
    done(true);
  });
}

bool SimStore::Read(const SlabName& name, absl::Duration time) {
  const auto slab = slabs_.find(Describe(name));
  if (!up_ || slab == slabs_.end() || slab->second.unlinked) return false;
  ++slab->second.readers;
  cluster_.events().After(time, [this, name, life = life_] {
    if (life != life_) return;
    Stored& read = slabs_.at(Describe(name));
    if (--read.readers == 0 && read.unlinked) FinishDelete(name);
  });
  return true;
}

void SimStore::FinishDelete(const SlabName& name) {
  slabs_.erase(Describe(name));
  Send(SlabRemoved{.name = name});
}

// ---- Its process and its stream ----

void SimStore::Crash(absl::Duration down_for) {
  if (!up_) return;
  BreakStream();
  up_ = false;
  ++life_;
  puts_.clear();
  if (options_.tier == Tier::kRam) slabs_.clear();
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    slab->second.readers = 0;
    slab = slab->second.unlinked ? slabs_.erase(slab) : std::next(slab);
  }
  cluster_.events().After(down_for, [this] {
    up_ = true;
    AttachLater();
  });
}

void SimStore::BreakStream() {
  if (stream_ == StreamId{0}) return;
  cluster_.StreamBroke(std::exchange(stream_, StreamId{0}));
  AttachLater();
}

void SimStore::AttachLater() {
  cluster_.events().After(cluster_.dice().Time(absl::Milliseconds(10), absl::Seconds(3)),
                          [this, life = life_] {
                            if (life == life_ && up_ && stream_ == StreamId{0}) Attach();
                          });
}

void SimStore::Attach() {
  stream_ = cluster_.OpenStream(this);
  if (stream_ == StreamId{0}) {
    AttachLater();
    return;
  }
  said_inventory_ = false;
  Send(StoreHello{.uid = uid_,
                  .boot = IdOf<InstanceId>(static_cast<uint32_t>(life_)),
                  .address = "store",
                  .node = "node",
                  .tier = options_.tier,
                  .budget_bytes = options_.budget_bytes,
                  .seen = seen_});
  Heartbeat(life_, stream_);
}

void SimStore::Heartbeat(uint64_t life, StreamId stream) {
  if (life != life_ || stream != stream_) return;
  if (said_inventory_) {
    StoreHeartbeat heartbeat;
    for (const auto& [name, put] : puts_) heartbeat.open_puts.push_back(put.facts.name.write_id);
    Send(heartbeat);
  }
  cluster_.events().After(absl::Seconds(5), [this, life, stream] { Heartbeat(life, stream); });
}

void SimStore::Send(Command command) {
  if (stream_ == StreamId{0}) return;
  // What is said before the inventory is part of it.
  const bool early = !said_inventory_ && !std::holds_alternative<StoreHello>(command) &&
                     !std::holds_alternative<StorePong>(command);
  if (!early) cluster_.SendUp(stream_, std::move(command));
}

void SimStore::OnClosed(StreamId stream) {
  if (stream != stream_) return;
  stream_ = StreamId{0};
  AttachLater();
}

// ---- What the arbiter says ----

void SimStore::OnMessage(StreamId stream, const ToStore& message) {
  if (stream != stream_ || !up_) return;
  std::visit([this](const auto& it) { Do(it); }, message.message);
}

void SimStore::Do(const Welcome& it) {
  const bool older = seen_.has_value() &&
                     (it.incarnation.number < seen_->number ||
                      (it.incarnation.number == seen_->number && it.incarnation.id != seen_->id));
  if (older) {
    BreakStream();
    return;
  }
  seen_ = it.incarnation;
  if (!said_inventory_) SayInventory();
}

void SimStore::SayInventory() {
  said_inventory_ = true;
  StoreInventory page;
  for (const auto& [name, slab] : slabs_) {
    if (slab.unlinked) continue;
    page.slabs.push_back(slab.facts);
    if (page.slabs.size() < 3) continue;
    Send(std::exchange(page, {}));
  }
  page.last = true;
  Send(page);
}

void SimStore::Do(const DeleteSlab& it) {
  const std::string name = Describe(it.name);
  if (const auto put = puts_.find(name); put != puts_.end()) {
    put->second.aborted = true;  // answered when the put has ended
    return;
  }
  const auto slab = slabs_.find(name);
  if (slab == slabs_.end()) {
    Send(SlabRemoved{.name = it.name});
    return;
  }
  slab->second.unlinked = true;
  if (slab->second.readers == 0) FinishDelete(it.name);
}

void SimStore::Do(const VerifySlab& it) {
  const auto slab = slabs_.find(Describe(it.name));
  Send(SlabVerified{.name = it.name, .sound = slab != slabs_.end() && !slab->second.unlinked});
}

void SimStore::Do(const DescribeSlab& it) {
  const auto slab = slabs_.find(Describe(it.name));
  if (slab == slabs_.end() || slab->second.unlinked) {
    Send(SlabRemoved{.name = it.name, .cause = RemovalCause::kOther});
  } else {
    Send(SlabAnnounced{.slab = slab->second.facts});
  }
}

void SimStore::Do(const RecordUse&) {}

void SimStore::Do(const Ping&) {
  Send(StorePong());
}

}  // namespace kvmesh::meta::sim
