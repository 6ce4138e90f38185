// Random commands for the arbiter: mostly such as make sense where it stands, some that do not. A
// command, once made, is a plain value: lists of them can be run again, shortened.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "services/meta/core/arbiter.h"
#include "tests/unit/meta/arbiter_values.h"

namespace kvmesh::meta::testing {

struct Step {
  absl::Duration after;
  Command command;
};

class RandomCommands {
 public:
  explicit RandomCommands(uint64_t seed) : random_(seed) {}

  // The stores come, with nothing.
  std::vector<Step> Opening();
  Step Next(const Arbiter& arbiter, MonoTime now);

 private:
  uint32_t Int(uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random_);
  }
  bool OneIn(uint32_t n) { return Int(1, n) == 1; }
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[Int(0, static_cast<uint32_t>(from.size()) - 1)];
  }
  absl::Duration Pause();
  absl::Duration Wait() { return absl::Milliseconds(Pick<int>({0, 50, 500, 2000})); }

  Command RandomCommand(const Arbiter& arbiter, MonoTime now);
  Command OfWriter(const Arbiter& arbiter, MonoTime now);
  Command OfReader(const Arbiter& arbiter, MonoTime now);
  Command OfStore(const Arbiter& arbiter, MonoTime now);
  Command RandomReserve(ReservationKind kind);
  Command Arrival(const Arbiter& arbiter, MonoTime now);
  Command Stray();
  Command Acknowledgement(const Arbiter& arbiter, MonoTime now);
  Command AgainAnnounced(const Arbiter& arbiter, MonoTime now);
  Command Hello();
  Command Inventory(const Arbiter& arbiter, MonoTime now);
  Command Heartbeat(const Arbiter& arbiter, MonoTime now);
  LayerRange RandomLayers(uint32_t key);
  std::vector<PlacedSlab> Slabs(const Arbiter& arbiter, MonoTime now, SlabState state);
  std::vector<RowSnapshot> Rows(const Arbiter& arbiter, MonoTime now);
  SlabFacts Remember(const StoreUid& store, const SlabSpec& spec);
  StreamId StreamOf(const StoreUid& store) { return streams_[NumberOf(store)]; }

  static constexpr uint32_t kKeys = 6;
  static constexpr uint32_t kStores = 3;

  std::mt19937_64 random_;
  uint64_t next_ticket_ = 1;
  uint32_t next_write_ = 1;
  uint32_t next_request_ = 1;
  uint32_t next_lease_ = 100;
  uint64_t next_stream_ = 1;
  std::map<uint32_t, StreamId> streams_;                            // newest of each store
  std::map<std::pair<uint32_t, std::string>, SlabSpec> announced_;  // by store and name
};

std::string Describe(const Step& step);

}  // namespace kvmesh::meta::testing
