// What a hop and the executor of its checkpoints hand one another: snapshots to store, slabs to
// read, and how both ended. Plain values; what runs them (threads, gRPC) is invisible here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "common/base/trace.h"
#include "common/forward/frames.h"
#include "services/shard/core/layer_state.h"

namespace kvmesh::shard {

enum class StreamId : uint64_t {};
enum class SaveId : uint64_t {};

// What a shard saves and restores, and how much of it at a time. Fixed for the life of the process.
struct CheckpointOptions {
  bool enabled = false;    // the feature forward::kCheckpointsFeature
  bool fragments = false;  // an arbiter is known, so that this shard can save on its own account
  uint64_t save_inflight_bytes_max = uint64_t{256} << 20;
  uint32_t saves_max = 64;    // in flight
  uint32_t min_tokens = 512;  // an evicted session with fewer is not worth a save
  absl::Duration save_timeout = absl::Seconds(30);
  absl::Duration evict_save_timeout = absl::Seconds(2);
  absl::Duration restore_timeout = absl::Seconds(10);
};

// State of exactly `tokens`, which no later step of its session changes.
struct StateSnapshot {
  forward::CacheNamespace cache_namespace;
  LayerRange layers;
  std::vector<uint32_t> tokens;  // ids
  SessionState state;
  std::vector<float> last_row;  // [hidden_size] after the range's last layer; empty: it was cut
  uint64_t bytes = 0;           // in canonical form
};

// Why a save was not made.
enum class SaveDrop {
  kCheckpointsOff,    // not a feature of this shard
  kNoTarget,          // the frame names no store for this hop
  kNotHeld,           // fewer tokens are held, or none
  kCannotCut,         // more tokens are held, and some layer's state cannot be cut
  kTooShort,          // below min_tokens
  kBackpressure,      // too many bytes of snapshots in flight already
  kNoMemory,          // for the snapshot, or for the slab
  kNoArbiter,         // none is known, or it did not answer
  kReserveRefused,    // the arbiter refused the write
  kEncodeFailed,      // no slab can be made of it: its text is too long
  kStoreRefused,      // the store refused the slab
  kStoreUnavailable,  // the store did not answer, or its medium failed
  kDeadline,
  kShuttingDown,
};
inline constexpr int kSaveDropCount = 14;
inline constexpr int kSaveReasonCount = 5;

// Stable names, for metrics and for SaveState's `cause`: "not_held"; "cold".
absl::string_view SaveDropName(SaveDrop drop);
absl::string_view SaveReasonName(forward::SaveReason reason);

// One slab to store. Outlives the stream that asked for it.
struct SaveJob {
  SaveId id{0};
  StateSnapshot snapshot;
  forward::SaveReason reason = forward::SaveReason::kCold;
  // Both empty: a fragment. The arbiter then mints the write and names the store.
  WriteId write_id;
  std::string store_address;
  absl::Duration time_limit;
  Trace trace;  // of the stream that asked; none: the shard itself did

  bool fragment() const { return store_address.empty(); }
};

// Layers to read from one slab.
struct SlabRead {
  forward::SlabRef slab;
  std::vector<uint32_t> layers;  // ascending, not empty
};

// State to read before a stream's first frame runs.
struct RestoreJob {
  StreamId stream{0};
  forward::CacheNamespace cache_namespace;
  std::vector<uint32_t> tokens;  // ids, as the history has them
  std::vector<SlabRead> reads;   // together all of the shard's layers
  absl::Duration time_limit;
  Trace trace;
};

// Why state was not restored.
enum class RestoreFault {
  kNotFound,     // the store has no such slab
  kUnavailable,  // the store did not answer, or its medium failed
  kRefused,      // the store refused the read
  kDeadline,
  kCorrupt,       // a CRC, length or rule of the format is broken
  kWrongSlab,     // sound, but another key, write, range or namespace than asked for
  kTokensDiffer,  // sound, but of other ids than the history's, or of too few
  kWrongState,    // sound, but its state is of another kind, dtype or size than this engine's
  kNoMemory,
  kBusy,  // too many restores wait
  kCancelled,
};
inline constexpr int kRestoreFaultCount = 11;
absl::string_view RestoreFaultName(RestoreFault fault);  // "corrupt"

struct RestoreFailure {
  RestoreFault fault = RestoreFault::kUnavailable;
  std::string detail;
  std::optional<forward::SlabRef> slab;

  // Whether the slab itself is to blame, so that its store should look at it.
  bool slab_is_bad() const {
    return fault == RestoreFault::kNotFound || fault == RestoreFault::kCorrupt ||
           fault == RestoreFault::kWrongSlab || fault == RestoreFault::kWrongState;
  }
};

struct RestoredState {
  SessionState state;
  std::vector<float> last_row;  // empty: no slab has the row of this range's end
};

using RestoreResult = std::variant<RestoredState, RestoreFailure>;

}  // namespace kvmesh::shard
