#include "tests/sim/meta/cluster.h"

#include <algorithm>
#include <utility>

namespace kvmesh::meta::sim {

using testing::Describe;
using testing::IdOf;
using testing::NumberOf;

namespace {

constexpr absl::Duration kActive = absl::Seconds(150);
// A fragment that was leased when its time came lives for another 600 s.
constexpr absl::Duration kRest = absl::Seconds(1500);
constexpr size_t kEventsMax = 2000000;

}  // namespace

Cluster::Cluster(const ClusterOptions& options) : options_(options), dice_(options.seed) {
  StartArbiter();
  const uint32_t stores = dice_.Int(2, 4);
  for (uint32_t i = 0; i < stores; ++i) {
    const Tier tier = i == 0 ? Tier::kRamFile : static_cast<Tier>(dice_.Int(0, 2));
    stores_.push_back(std::make_unique<SimStore>(
        *this, SimStoreOptions{
                   .number = i, .tier = tier, .budget_bytes = dice_.Int(10, 40) * kPageBytes}));
  }
  if (!options_.faults) return;
  loss_ = dice_.OneIn(2) ? 0 : dice_.OneIn(2) ? 0.02 : 0.15;
  repeat_ = dice_.OneIn(2) ? 0 : 0.1;
}

std::string Cluster::Run() {
  ScheduleWork();
  if (options_.faults) ScheduleFaults();
  const auto stop = [this] { return !broken_.empty(); };
  const MonoTime start = events_.now();
  if (!events_.RunUntil(start + kActive, kEventsMax, stop)) return "it spins";
  resting_ = true;
  loss_ = 0;
  repeat_ = 0;
  if (!events_.RunUntil(start + kActive + kRest, kEventsMax, stop)) return "it spins at rest";
  return broken_.empty() ? AtRest() : broken_;
}

void Cluster::Broken(const std::string& promise) {
  if (broken_.empty())
    broken_ = absl::StrCat("at ", absl::FormatDuration(events_.now()), ": ", promise);
}

absl::Duration Cluster::Delay() {
  if (options_.faults && !resting_ && dice_.OneIn(30)) {
    return dice_.Time(absl::Milliseconds(20), absl::Seconds(2));
  }
  return dice_.Time(absl::Microseconds(200), absl::Milliseconds(20));
}

uint64_t Cluster::refused_puts() const {
  uint64_t refused = 0;
  for (const auto& store : stores_) refused += store->refused_puts();
  return refused;
}

// ---- The arbiter's process ----

void Cluster::StartArbiter() {
  ++life_;
  arbiter_ = std::make_unique<Arbiter>(
      ArbiterOptions{.incarnation_id = IdOf<InstanceId>(1000 + static_cast<uint32_t>(life_)),
                     .limits = {.step_slabs = dice_.OneIn(2) ? 1 : dice_.Int(2, 50)}});
  index_ = std::make_unique<testing::IndexFollower>();
}

void Cluster::CrashArbiter() {
  arbiter_.reset();
  index_.reset();
  callers_.clear();
  guards_.clear();
  tick_at_ = absl::InfiniteDuration();
  goes_on_ = false;
  ++stats_.arbiter_restarts;
  for (const auto& [id, stream] : std::exchange(streams_, {})) {
    events_.After(Delay(), [store = stream.store, id = id] { store->OnClosed(id); });
  }
}

void Cluster::Deliver(Command command) {
  if (arbiter_ == nullptr) return;
  const MonoTime now = events_.now();
  if (const auto* renew = std::get_if<Renew>(&command)) {
    for (const LeaseId& lease : renew->leases) {
      const auto guard = guards_.find(lease);
      if (guard != guards_.end() && guard->second.until > now) {
        guard->second.until = now + ArbiterLimits().lease_ttl;
      }
    }
  } else if (const auto* checkin = std::get_if<Checkin>(&command)) {
    guards_.erase(checkin->lease);
  }
  const std::vector<Effect> effects = arbiter_->Apply(command, now);
  if (const std::string wrong = index_->Follow(effects); !wrong.empty()) Broken(wrong);
  for (const Effect& effect : effects) Perform(effect);
  ScheduleTick();
  ScheduleGoOn();
}

void Cluster::ScheduleGoOn() {
  if (!arbiter_->HasMore() || std::exchange(goes_on_, true)) return;
  events_.After(dice_.Time(absl::ZeroDuration(), absl::Milliseconds(5)), [this, life = life_] {
    if (life != life_) return;
    goes_on_ = false;
    Deliver(GoOn{});
  });
}

void Cluster::ScheduleTick() {
  const MonoTime next = arbiter_->NextTimer();
  if (next >= tick_at_) return;
  tick_at_ = next;
  events_.After(std::max(next - events_.now(), absl::ZeroDuration()), [this, next, life = life_] {
    if (life != life_ || next != tick_at_) return;
    tick_at_ = absl::InfiniteDuration();
    Deliver(Tick{});
  });
}

void Cluster::Perform(const Effect& effect) {
  if (const auto* reply = std::get_if<Reply>(&effect)) Do(*reply);
  if (const auto* message = std::get_if<ToStore>(&effect)) Do(*message);
  if (const auto* close = std::get_if<CloseStream>(&effect)) Do(*close);
  if (const auto* opened = std::get_if<RowOpened>(&effect)) {
    ++stats_.rows_opened;
    // A later effect of the same command may have closed it again.
    for (const RowSnapshot& row :
         arbiter_->ListRows(std::nullopt, 1, {.key = opened->key}, events_.now())) {
      CheckRow(row);
    }
  }
}

void Cluster::Do(const Reply& reply) {
  const auto caller = callers_.find(reply.ticket);
  if (caller == callers_.end()) {
    Broken("an answer that nobody waits for");
    return;
  }
  const MonoTime now = events_.now();
  if (const auto* grant = std::get_if<LeaseGrant>(&reply.answer)) {
    Guard guard{.until = now + grant->ttl};
    for (const PlacedSlab& slab : grant->row.slabs) guard.names.insert(Describe(slab.name));
    guards_[grant->lease] = guard;
    CheckRow(grant->row);
    ++stats_.checkouts;
  } else if (const auto* fragment = std::get_if<FragmentGrant>(&reply.answer)) {
    guards_[fragment->lease] = {.names = {Describe(fragment->slab.name)},
                                .until = now + fragment->ttl};
    CheckPublished(fragment->slab);
  } else if (const auto* row = std::get_if<RowSnapshot>(&reply.answer)) {
    CheckRow(*row);
  }
  const Answered done = std::move(caller->second);
  callers_.erase(caller);
  if (dice_.Chance(loss_)) return;
  events_.After(Delay(), [done, answer = reply.answer] { done(answer); });
}

void Cluster::Do(const ToStore& message) {
  if (const auto* gone = std::get_if<DeleteSlab>(&message.message)) {
    ++stats_.deletes;
    for (const auto& [lease, guard] : guards_) {
      const bool held = guard.until > events_.now() && guard.names.contains(Describe(gone->name));
      if (held) Broken("a leased slab is deleted: " + Describe(gone->name));
    }
  }
  const auto stream = streams_.find(message.stream);
  if (stream == streams_.end()) return;  // broken; the arbiter has not heard of it yet
  stream->second.down = std::max(stream->second.down, events_.now() + Delay());
  events_.After(stream->second.down - events_.now(), [this, message] {
    const auto still = streams_.find(message.stream);
    if (still != streams_.end()) still->second.store->OnMessage(message.stream, message);
  });
}

void Cluster::Do(const CloseStream& close) {
  const auto stream = streams_.find(close.stream);
  if (stream == streams_.end()) return;
  SimStore* store = stream->second.store;
  streams_.erase(stream);
  events_.After(Delay(), [store, id = close.stream] { store->OnClosed(id); });
}

// ---- The network ----

StreamId Cluster::OpenStream(SimStore* store) {
  if (arbiter_ == nullptr) return StreamId{0};
  const StreamId id{next_stream_++};
  streams_[id] = {.store = store, .up = events_.now(), .down = events_.now()};
  return id;
}

void Cluster::SendUp(StreamId id, Command command) {
  const auto stream = streams_.find(id);
  if (stream == streams_.end()) return;
  std::visit(
      [id](auto& it) {
        if constexpr (requires { it.stream; }) it.stream = id;
      },
      command);
  stream->second.up = std::max(stream->second.up, events_.now() + Delay());
  events_.After(stream->second.up - events_.now(), [this, id, command = std::move(command)] {
    if (streams_.contains(id)) Deliver(command);
  });
}

void Cluster::StreamBroke(StreamId id) {
  if (streams_.erase(id) == 0) return;
  events_.After(Delay(), [this, id, life = life_] {
    if (life == life_) Deliver(StoreGone{.stream = id});
  });
}

// One RPC: `done` is called once, with the answer or, after `wait`, without.
void Cluster::Call(const std::function<Command(Ticket)>& make, absl::Duration wait, Answered done) {
  const Ticket ticket{next_ticket_++};
  const auto over = std::make_shared<bool>(false);
  const Answered once = [over, done = std::move(done)](const std::optional<Answer>& answer) {
    if (!std::exchange(*over, true)) done(answer);
  };
  if (!dice_.Chance(loss_)) {
    events_.After(Delay(), [this, make, ticket, once, over] {
      if (!*over) Arrive(make, ticket, once);
    });
  }
  if (dice_.Chance(repeat_)) {
    const Ticket again{next_ticket_++};
    events_.After(Delay(), [this, make, again] { Arrive(make, again, [](const auto&) {}); });
  }
  events_.After(wait, [this, ticket, once] {
    once(std::nullopt);
    if (callers_.erase(ticket) > 0) Deliver(Abandon{.ticket = ticket});
  });
}

void Cluster::Arrive(const std::function<Command(Ticket)>& make, Ticket ticket, Answered done) {
  if (arbiter_ == nullptr) return;
  callers_[ticket] = std::move(done);
  Deliver(make(ticket));
  // No wait is longer than this, whoever still listens.
  events_.After(absl::Seconds(61), [this, ticket] {
    if (callers_.contains(ticket)) Broken("a caller was never answered");
  });
}

void Cluster::Published(const StoreUid& store, const SlabFacts& facts) {
  published_[{NumberOf(store), Describe(facts.name)}] = facts;
}

// ---- Faults and the end ----

void Cluster::ScheduleFaults() {
  const uint32_t faults = dice_.Int(0, 6);
  for (uint32_t i = 0; i < faults; ++i) {
    const absl::Duration when = dice_.Time(absl::ZeroDuration(), kActive - absl::Seconds(5));
    const absl::Duration down = dice_.Time(absl::Milliseconds(100), absl::Seconds(30));
    const uint32_t kind = dice_.Int(0, 2);
    SimStore* store = stores_[dice_.Int(0, static_cast<uint32_t>(stores_.size()) - 1)].get();
    events_.After(when, [this, kind, store, down] {
      if (kind == 1) store->Crash(down);
      if (kind == 2) store->BreakStream();
      if (kind != 0 || arbiter_ == nullptr) return;
      CrashArbiter();
      events_.After(down, [this] { StartArbiter(); });
    });
  }
}

std::string Cluster::AtRest() {
  const ArbiterCounts counts = arbiter_->Counts();
  if (counts.leases + counts.reservations + counts.waiters + counts.fragments > 0) {
    return absl::StrCat("left over: ", counts.leases, " leases, ", counts.reservations,
                        " reservations, ", counts.waiters, " waiters, ", counts.fragments,
                        " fragments");
  }
  if (!callers_.empty()) return "callers are left";
  std::map<uint32_t, std::map<std::string, uint64_t>> filed;
  for (const RowSnapshot& row :
       arbiter_->ListRows(std::nullopt, 10000, {.rows_only = false}, events_.now())) {
    if (row.state != RowState::kAvailable) return absl::StrCat("a row is ", ToString(row.state));
    for (const PlacedSlab& slab : row.slabs) {
      filed[NumberOf(slab.store)][Describe(slab.name)] = slab.size_bytes;
    }
  }
  for (const auto& store : stores_) {
    if (store->Contents() != filed[NumberOf(store->uid())]) {
      return absl::StrCat("store ", NumberOf(store->uid()), " holds ", store->Contents().size(),
                          " slabs, the arbiter's rows ", filed[NumberOf(store->uid())].size());
    }
    if (store->open_puts() > 0) return "a put never ends";
  }
  for (const StoreSnapshot& store : arbiter_->Stores()) {
    if (store.state != StoreState::kServing) return "a store does not serve";
    if (store.reserved_bytes + store.deleting_bytes > 0) return "bytes are in flight for ever";
  }
  return "";
}

}  // namespace kvmesh::meta::sim
