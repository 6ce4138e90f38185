// An arbiter, stores, writers and readers in virtual time, on a network that delays, loses,
// repeats and reorders (but keeps each stream in order), with processes that crash and come back.
// A run is a function of its seed.
//
// Promises watched all the time: what is offered or granted was published wholly, in one
// tokenisation; nothing leased is deleted; every caller is answered once, in time. At rest: no
// lease, reservation or waiter is left, no byte in flight or being deleted, and the stores hold
// exactly the slabs of the arbiter's rows.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/event_queue.h"
#include "tests/sim/meta/sim_store.h"
#include "tests/unit/meta/index_follower.h"

namespace kvmesh::meta::sim {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  // In [low, high].
  uint32_t Int(uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random_);
  }
  bool OneIn(uint32_t n) { return Int(1, n) == 1; }
  bool Chance(double share) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < share;
  }
  absl::Duration Time(absl::Duration low, absl::Duration high) {
    return low + (high - low) * std::uniform_real_distribution<double>(0, 1)(random_);
  }

 private:
  std::mt19937_64 random_;
};

struct ClusterOptions {
  uint64_t seed = 0;
  bool faults = true;
};

struct ClusterStats {
  uint64_t granted = 0;
  uint64_t refused_reservations = 0;
  uint64_t checkouts = 0;
  uint64_t rows_opened = 0;
  uint64_t deletes = 0;
  uint64_t arbiter_restarts = 0;
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Empty, or the promise that was broken.
  std::string Run();
  const ClusterStats& stats() const { return stats_; }
  uint64_t refused_puts() const;

  // For stores.
  kvmesh::sim::EventQueue& events() { return events_; }
  Dice& dice() { return dice_; }
  // 0: the arbiter is down.
  StreamId OpenStream(SimStore* store);
  void SendUp(StreamId stream, Command command);
  void StreamBroke(StreamId stream);
  void Published(const StoreUid& store, const SlabFacts& facts);

 private:
  using Answered = std::function<void(const std::optional<Answer>&)>;
  struct Stream {
    SimStore* store = nullptr;
    MonoTime up;  // when the last message arrives, each way
    MonoTime down;
  };
  struct Guard {  // what a live lease protects
    std::set<std::string> names;
    MonoTime until;
  };
  struct Write;

  // The arbiter's process (cluster.cc).
  void StartArbiter();
  void CrashArbiter();
  void Deliver(Command command);
  void Perform(const Effect& effect);
  void Do(const Reply& reply);
  void Do(const ToStore& message);
  void Do(const CloseStream& close);
  void ScheduleTick();
  void ScheduleGoOn();
  void Call(const std::function<Command(Ticket)>& make, absl::Duration wait, Answered done);
  void Arrive(const std::function<Command(Ticket)>& make, Ticket ticket, Answered done);
  void Broken(const std::string& promise);
  absl::Duration Delay();

  // Clients (clients.cc).
  void ScheduleWork();
  void StartWrite();
  void TryReserve(std::shared_ptr<Write> write, int tries);
  void StartPuts(std::shared_ptr<Write> write, const ReservationGrant& grant);
  void KeepWrite(std::shared_ptr<Write> write);
  void CancelWrite(std::shared_ptr<Write> write);
  void StartRead();
  void HoldLease(const LeaseGrant& grant, MonoTime until);
  void AwaitSomeKey();
  void AwaitSomeFragment();
  void CheckPublished(const PlacedSlab& slab);
  void CheckRow(const RowSnapshot& row);
  SimStore* StoreOf(const StoreUid& uid);

  // Faults and the end (cluster.cc).
  void ScheduleFaults();
  std::string AtRest();

  const ClusterOptions options_;
  Dice dice_;
  kvmesh::sim::EventQueue events_;
  double loss_ = 0;
  double repeat_ = 0;
  bool resting_ = false;
  std::string broken_;
  ClusterStats stats_;

  std::unique_ptr<Arbiter> arbiter_;  // none: down
  uint64_t life_ = 0;
  std::unique_ptr<testing::IndexFollower> index_;
  std::map<Ticket, Answered> callers_;
  std::map<LeaseId, Guard> guards_;
  std::map<StreamId, Stream> streams_;
  MonoTime tick_at_ = absl::InfiniteDuration();
  bool goes_on_ = false;  // a GoOn is scheduled

  std::vector<std::unique_ptr<SimStore>> stores_;
  std::map<std::pair<uint32_t, std::string>, SlabFacts> published_;
  uint64_t next_ticket_ = 1;
  uint64_t next_stream_ = 1;
  uint32_t next_id_ = 1;
};

}  // namespace kvmesh::meta::sim
