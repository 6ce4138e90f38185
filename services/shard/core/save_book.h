// The saves in flight at one shard: who asked for each, what they hold in memory, and how those
// before them ended. Not thread-safe.
// Invariant: bytes() equals the sum over the saves in flight.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "services/shard/core/checkpoint.h"

namespace kvmesh::shard {

struct SaveCounters {
  using PerReason = std::array<uint64_t, kSaveReasonCount>;
  PerReason done{};
  PerReason done_bytes{};  // of state, in canonical form
  std::array<PerReason, kSaveDropCount> dropped{};
};

class SaveBook {
 public:
  struct Flight {
    StreamId stream{0};  // that is told; may have ended
    WriteId write_id;
    forward::SaveReason reason = forward::SaveReason::kCold;
    uint64_t bytes = 0;
    bool started = false;
  };

  explicit SaveBook(const CheckpointOptions& options) : options_(options) {}

  // Whether a snapshot of so many bytes may be taken now.
  bool Fits(uint64_t bytes) const;
  SaveId Add(const Flight& flight);
  // Null: it has ended.
  Flight* Find(SaveId id);
  // Takes it out and counts how it ended (none: it is stored). Nothing: it has ended before.
  std::optional<Flight> End(SaveId id, std::optional<SaveDrop> drop);
  // Counts a save that never was in flight.
  void CountDrop(forward::SaveReason reason, SaveDrop drop);

  size_t size() const { return flights_.size(); }
  // In flight for this stream.
  size_t size(StreamId stream) const;
  uint64_t bytes() const { return bytes_; }
  const SaveCounters& counters() const { return counters_; }

 private:
  const CheckpointOptions options_;
  std::map<SaveId, Flight> flights_;  // at most saves_max
  uint64_t next_ = 1;
  uint64_t bytes_ = 0;
  SaveCounters counters_;
};

}  // namespace kvmesh::shard
