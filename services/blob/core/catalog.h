// What a store holds, and the accounts of its budget. Knows no policy: it says what is there, what
// is in flight, and whether a put still fits.
//
// Pure: no clock, no I/O. Not thread-safe: SlabStore owns it under its mutex.
// Invariants: used + in flight + quarantined never passes the budget, but for what was found at
// start-up or quarantined; a name has one entry or one put; an entry with readers is not forgotten.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/blob/core/namespace_pool.h"
#include "services/blob/core/slab_name.h"

namespace kvmesh::blob {

// What a slab's header and meta section say: enough to list, announce and file it.
struct SlabInfo {
  SlabName name;
  uint64_t file_bytes = 0;
  uint32_t token_count = 0;
  uint32_t hit_count = 0;
  uint64_t text_bytes = 0;
  uint64_t creation_time_s = 0;
  uint64_t last_used_time_s = 0;
  uint32_t payload_crc32c = 0;
  uint64_t block_hash = 0;
  uint32_t tail_hash = 0;
  slab::SaveReason reason = slab::SaveReason::kCold;
  bool ends_inside_character = false;  // the text does
  uint32_t model_layers = 0;           // 0: the slab does not say
  Sha256Digest tokens_sha256;
  slab::KeyNamespace key_namespace;
  std::vector<slab::CutPoint> cut_points;
};

SlabInfo InfoOf(const slab::SlabMeta& meta);

// What a slab counts for: media give space in pages.
constexpr uint64_t ChargedBytes(uint64_t file_bytes) {
  return slab::AlignUp(file_bytes);
}

// Of one listing: with it a message of a thousand slabs stays below 4 MiB.
inline constexpr size_t kListedCutPointsMax = 24576;

struct Listing {
  std::vector<SlabInfo> slabs;
  bool complete = false;  // there is none behind them
};

struct Usage {
  uint64_t budget_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t in_flight_bytes = 0;
  uint64_t quarantined_bytes = 0;
  uint64_t slabs = 0;

  uint64_t occupied() const { return used_bytes + in_flight_bytes + quarantined_bytes; }
};

class Catalog {
 public:
  explicit Catalog(uint64_t budget_bytes) { usage_.budget_bytes = budget_bytes; }

  // Reserves room for a put and fences its name.
  // AlreadyExists: the slab is here. Aborted BEING_WRITTEN, DELETING: another call works on it.
  // ResourceExhausted NO_ROOM: the budget, in-flight bytes included, does not hold it (TOO_LARGE:
  // nor would it hold it alone).
  absl::Status BeginPut(const SlabName& name, uint64_t file_bytes);
  // Whether a removal waits for the put's end, and ends with it.
  bool AbortPut(const SlabName& name);
  // Whether a removal waits for the put's end: then the slab is being removed now, as of kStarted.
  bool CommitPut(const SlabInfo& info);
  // Whether a removal waits for the end of this put.
  bool PutIsUnwanted(const SlabName& name) const;
  std::vector<WriteId> OpenPuts() const;

  // Adds what start-up found, over the budget or not.
  void AddFound(const SlabInfo& info);

  // NotFound: no such slab, or it is being deleted. Every success is followed by one EndRead.
  absl::Status BeginRead(const SlabName& name);
  // Whether this was the last reader of a removed slab, which is now forgotten.
  bool EndRead(const SlabName& name);

  enum class Removal { kAbsent, kInProgress, kStarted, kPutOpen };
  // kStarted: no new reader gets in, and the caller removes the slab from the medium; then it calls
  // EndRemoval, or CancelRemoval when that failed. kPutOpen: the slab is being written, and is
  // unwanted now; AbortPut or CommitPut will say so.
  Removal BeginRemoval(const SlabName& name);
  void CancelRemoval(const SlabName& name);
  // Whether the slab is forgotten; else its last reader's EndRead will say so.
  bool EndRemoval(const SlabName& name);

  // Present, being written, being removed, or removed and still read.
  bool Holds(const SlabName& name) const;
  // NotFound.
  absl::StatusOr<SlabInfo> Find(const SlabName& name) const;
  // In the order of their names, from the first behind `after` on: `count_max` (at least 1), or
  // fewer when they have more than kListedCutPointsMax cut points together; one at least.
  Listing List(const std::optional<SlabName>& after, size_t count_max) const;
  // Slabs to remove so that the rest, quarantine included, takes at most `bytes_max`: least
  // recently used first. A last use in the future counts as `now_s`.
  std::vector<SlabName> PlanTrim(uint64_t bytes_max, uint64_t now_s) const;

  void SetUse(const SlabName& name, uint32_t hit_count, uint64_t last_used_time_s);
  void SetQuarantined(uint64_t bytes) { usage_.quarantined_bytes = bytes; }
  const Usage& usage() const { return usage_; }

 private:
  enum class State : uint8_t { kPresent, kRemoving, kRemoved };
  // A slab as it is kept: SlabInfo without the name, which is the map's key, and with the namespace
  // shared. A store has hundreds of thousands.
  struct Entry {
    uint64_t file_bytes = 0;
    uint64_t text_bytes = 0;
    uint64_t creation_time_s = 0;
    uint64_t last_used_time_s = 0;
    uint64_t block_hash = 0;
    uint32_t token_count = 0;
    uint32_t hit_count = 0;
    uint32_t payload_crc32c = 0;
    uint32_t tail_hash = 0;
    uint32_t readers = 0;
    State state = State::kPresent;
    slab::SaveReason reason = slab::SaveReason::kCold;
    bool ends_inside_character = false;
    uint32_t model_layers = 0;
    Sha256Digest tokens_sha256;
    NamespacePool::Shared key_namespace;
    std::vector<slab::CutPoint> cut_points;
  };
  struct OpenWrite {
    uint64_t charged_bytes = 0;
    bool unwanted = false;
  };
  using Entries = std::map<SlabName, Entry>;

  static SlabInfo InfoOf(const Entries::value_type& entry);
  Entry EntryOf(const SlabInfo& info);
  void Forget(Entries::iterator entry);

  Usage usage_;
  NamespacePool namespaces_;
  Entries entries_;
  std::map<SlabName, OpenWrite> writing_;
};

}  // namespace kvmesh::blob
