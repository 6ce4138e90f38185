// An arbiter with a clock that is moved by hand, and short words for what the tables of
// docs/arbiter.md speak of.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/error_info.h"
#include "tests/unit/meta/arbiter_values.h"
#include "tests/unit/meta/index_follower.h"

namespace kvmesh::meta::testing {

// Key 0 belongs to a model of two layers.
inline constexpr uint32_t kKey = 0;
inline constexpr LayerRange kFirst{0, 1};
inline constexpr LayerRange kSecond{1, 2};

class ArbiterTest : public ::testing::Test {
 protected:
  ArbiterTest() : ArbiterTest(ArbiterLimits()) {}
  explicit ArbiterTest(const ArbiterLimits& limits)
      : arbiter_({.incarnation_id = IdOf<InstanceId>(500), .limits = limits}) {}

  const std::vector<Effect>& Apply(const Command& command) {
    effects_ = arbiter_.Apply(command, now_);
    EXPECT_EQ(follower_.Follow(effects_), "");
    return effects_;
  }
  const std::vector<Effect>& After(absl::Duration time) {
    now_ += time;
    return Apply(Tick{});
  }

  // ---- Stores ----
  StreamId Hello(uint32_t store, uint32_t boot = 1, uint64_t budget_pages = 100,
                 Tier tier = Tier::kRamFile) {
    const StreamId stream{next_stream_++};
    Apply(StoreHello{.stream = stream,
                     .uid = IdOf<StoreUid>(store),
                     .boot = IdOf<InstanceId>(boot),
                     .address = absl::StrCat("store", store, ":", boot),
                     .tier = tier,
                     .budget_bytes = budget_pages * kPageBytes});
    return stream;
  }
  StreamId Serve(uint32_t store, const std::vector<SlabSpec>& slabs = {},
                 uint64_t budget_pages = 100, Tier tier = Tier::kRamFile) {
    const StreamId stream = Hello(store, 1, budget_pages, tier);
    Inventory(stream, slabs);
    return stream;
  }
  void Inventory(StreamId stream, const std::vector<SlabSpec>& slabs, bool last = true) {
    StoreInventory page{.stream = stream, .last = last};
    for (const SlabSpec& slab : slabs) page.slabs.push_back(FactsOf(slab));
    Apply(page);
  }
  void Announce(StreamId stream, const SlabSpec& slab) {
    Apply(SlabAnnounced{.stream = stream, .slab = FactsOf(slab)});
  }
  void Deleted(StreamId stream, const SlabSpec& slab) {
    Apply(SlabRemoved{.stream = stream, .name = FactsOf(slab).name});
  }
  void KeepAlive(StreamId stream, absl::Duration time) {
    const MonoTime until = now_ + time;
    while (now_ < until) {
      now_ = std::min(until, now_ + absl::Seconds(5));
      Apply(StoreHeartbeat{.stream = stream});
    }
  }

  // ---- Writers ----
  static Reserve RowRequest(uint32_t key, uint32_t write, uint32_t pages_each = 1) {
    return {.ticket = Ticket{write},
            .request = IdOf<RequestId>(write),
            .kind = ReservationKind::kRow,
            .key_namespace = NamespaceOf(NamespaceOfKey(key)),
            .key = KeyOf(key),
            .model_layers = LayersOf(NamespaceOfKey(key)),
            .ranges = {{kFirst, pages_each * kPageBytes}, {kSecond, pages_each * kPageBytes}},
            .write_id = IdOf<WriteId>(write)};
  }
  void ReserveRow(uint32_t key, uint32_t write, uint32_t pages_each = 1) {
    Apply(RowRequest(key, write, pages_each));
    ASSERT_NE(Answered<ReservationGrant>(Ticket{write}), nullptr);
  }
  void WriteRow(StreamId stream, uint32_t key, uint32_t write, uint32_t pages_each = 1) {
    ReserveRow(key, write, pages_each);
    for (const LayerRange layers : {kFirst, kSecond}) {
      Announce(stream, {.key = key, .layers = layers, .write = write, .pages = pages_each});
    }
    ASSERT_EQ(States(key), "AVAILABLE");
  }

  // ---- What came out of the last command ----
  template <typename T>
  const T* Answered(Ticket ticket) const {
    for (const Effect& effect : effects_) {
      const auto* reply = std::get_if<Reply>(&effect);
      if (reply != nullptr && reply->ticket == ticket) return std::get_if<T>(&reply->answer);
    }
    return nullptr;
  }
  // Its code and reason; "" when there is no such answer.
  std::string Refused(uint64_t ticket) const {
    const auto* status = Answered<absl::Status>(Ticket{ticket});
    if (status == nullptr) return "";
    const std::string reason = ReasonOf(*status);
    return absl::StrCat(absl::StatusCodeToString(status->code()), reason.empty() ? "" : " ",
                        reason);
  }
  template <typename T>
  std::vector<std::string> Told() const {
    std::vector<std::string> names;
    for (const Effect& effect : effects_) {
      const auto* message = std::get_if<ToStore>(&effect);
      if (message == nullptr) continue;
      if (const auto* it = std::get_if<T>(&message->message)) names.push_back(Describe(it->name));
    }
    absl::c_sort(names);
    return names;
  }
  // Why rows went, in order.
  std::vector<GoneCause> Gone() const {
    std::vector<GoneCause> causes;
    for (const Effect& effect : effects_) {
      const auto* closed = std::get_if<RowClosed>(&effect);
      if (closed == nullptr) continue;
      EXPECT_EQ(closed->at, now_);
      causes.push_back(closed->cause);
    }
    return causes;
  }
  std::string Closed(StreamId stream) const {
    for (const Effect& effect : effects_) {
      const auto* close = std::get_if<CloseStream>(&effect);
      if (close != nullptr && close->stream == stream) {
        return absl::StrCat(absl::StatusCodeToString(close->status.code()), " ",
                            ReasonOf(close->status), ": ", close->status.message());
      }
    }
    return "";
  }

  // ---- What stands ----
  // The states of all groups of a key, sorted.
  std::string States(uint32_t key) const {
    std::vector<std::string> states;
    for (const RowSnapshot& row :
         arbiter_.ListRows(std::nullopt, 100, {.key = KeyOf(key), .rows_only = false}, now_)) {
      states.emplace_back(ToString(row.state));
    }
    absl::c_sort(states);
    std::string line;
    for (const std::string& state : states) absl::StrAppend(&line, line.empty() ? "" : " ", state);
    return line;
  }
  StoreSnapshot StoreNow(uint32_t store) const {
    for (const StoreSnapshot& it : arbiter_.Stores()) {
      if (it.uid == IdOf<StoreUid>(store)) return it;
    }
    ADD_FAILURE() << "no store " << store;
    return {};
  }
  std::string ReservationState(uint32_t write) const {
    for (const ReservationSnapshot& it : arbiter_.ListReservations(0, 100, now_)) {
      if (it.write_id == IdOf<WriteId>(write)) return std::string(ToString(it.state));
    }
    return "";
  }

  Arbiter arbiter_;
  IndexFollower follower_;
  MonoTime now_ = absl::Seconds(1000);
  std::vector<Effect> effects_;
  uint64_t next_stream_ = 1;
};

}  // namespace kvmesh::meta::testing
