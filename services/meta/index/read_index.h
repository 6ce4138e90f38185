// What lookups read: an image of the arbiter's rows that follows its deltas.
//
// One thread, the arbiter's writer, applies deltas in order; any number of threads look up. Both
// lock one of 64 parts at a time, for the length of a probe; no reader ever waits for a command. A
// lookup may see any prefix of history: it may miss a row that was just opened, or find one that is
// being closed. Checkout decides.
//
// Locks: a part of the cut points, then at most one part of the rows.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "services/meta/core/effects.h"
#include "services/meta/core/lookup_part.h"
#include "services/meta/core/lookup_query.h"
#include "services/meta/index/gone_rows.h"
#include "services/meta/index/prompt_path.h"

namespace kvmesh::meta {

struct LookupHit {
  RowId row{0};
  // The cut point that is a prefix of the text.
  Sha256Digest key;
  uint32_t token_count = 0;
  uint32_t text_bytes = 0;
  // The row's end.
  Sha256Digest row_key;
  uint32_t row_token_count = 0;
  uint32_t row_text_bytes = 0;
  Sha256Digest tokens_sha256;
  std::vector<RowSlab> slabs;  // by first layer
};

class ReadIndex {
 public:
  // Stores that a slot may name.
  static constexpr size_t kStoresMax = 1024;
  // Cut points of rows that went which are remembered; some 110 bytes each.
  static constexpr size_t kGonePointsMax = 65536;

  ReadIndex();

  // ---- Of the writer's thread ----
  void Apply(const NamespaceOpened& opened);
  void Apply(const NamespaceClosed& closed);
  void Apply(const StoreOpened& store);
  void Apply(const StoreReadable& store);
  void Apply(const RowOpened& row);
  void Apply(const RowClosed& row);
  void Apply(const RowUsed& row);
  // Parks rows that a lost store has made unreadable, and files those again that can be read: up to
  // `rows_max` of them. Rows are offered rightly without it; it bounds what a lookup skips. False:
  // nothing is left to do.
  bool Sweep(size_t rows_max);

  // ---- Of any thread ----
  // The longest cut point whose row can be read, among those of at least `token_count_min` tokens.
  std::optional<LookupHit> Lookup(const LookupQuery& query, uint32_t token_count_min = 0) const;
  struct Store {
    StoreUid uid;
    std::string address;
    Tier tier = Tier::kRam;
  };
  // As it was opened last.
  Store StoreAt(StoreSlot slot) const;
  // A row that goes on differently from a prompt.
  struct Neighbour {
    RowId row{0};
    Sha256Digest row_key;
    // It shares at least and at most so many bytes with the prompt.
    uint64_t common_bytes_min = 0;
    uint64_t common_bytes_max = 0;
    int32_t last_used_s = 0;
    Sha256Digest next_key;  // of its first cut point behind the shared ones
  };
  struct Neighbours {
    // Of rows with one next_key, which all share the same bytes, one. Those that share most by what
    // is known come first, of equal ones the last used.
    std::vector<Neighbour> rows;
    uint64_t left_out_bytes_max = 0;  // none that is left out shares more
    uint64_t rows_seen = 0;
  };
  // The rows of the prompt's namespace that share most with it, at most `count_max`; they may not
  // be readable. For explanations: goes through all rows, each under locks of its own (nearest.cc).
  Neighbours Nearest(const slab::KeyNamespace& key_namespace, PromptPath& path,
                     size_t count_max) const;
  // Rows that went, with what went with them.
  const GoneRows& gone() const { return gone_; }

  // The longest cut point of this row that is a prefix of the text, if it can be read.
  std::optional<LookupHit> LookupRow(RowId row, PromptPath& path) const;

  // Up to `count_max` of those that have rows.
  std::vector<slab::KeyNamespace> Namespaces(size_t count_max) const;

  size_t rows() const { return rows_open_.load(std::memory_order_relaxed); }
  size_t cut_points() const { return cut_points_.load(std::memory_order_relaxed); }
  // Of everything that the index allocated.
  size_t memory_bytes() const;

 private:
  static constexpr uint32_t kPartBits = 6;
  static constexpr uint32_t kParts = 1U << kPartBits;
  // Names an entry: part and number in it.
  using Handle = uint32_t;
  static constexpr Handle kNone = ~Handle{0};
  static_assert(LookupPart::kEntriesMax == 1ULL << (32 - kPartBits));

  // A RowSlab but for its write_id, and its first layer: that is where the one before ends.
  struct PackedSlab {
    uint16_t layer_end;
    StoreSlot slot;
    uint32_t size_pages;
  };
  static constexpr size_t kSlabsInline = 2;
  struct Row {
    Sha256Digest tokens_sha256;
    WriteId write_id;  // of all slabs
    std::array<PackedSlab, kSlabsInline> slabs;
    NamespaceId key_namespace{0};
    Handle first = kNone;         // of the chain of its cut points: the end
    uint32_t opened : 28 = 0;     // grows each time that this id is opened
    uint32_t slab_count : 2 = 0;  // 0: RowPart::more has them
    bool open : 1 = false;
    bool parked : 1 = false;
  };
  static_assert(sizeof(Row) == 76);
  static constexpr uint32_t kChunkRows = 64;

  struct Part {
    mutable Mutex mutex;
    LookupPart cut_points ABSL_GUARDED_BY(mutex);
  };
  struct RowPart {
    mutable Mutex mutex;
    std::vector<std::unique_ptr<Row[]>> chunks ABSL_GUARDED_BY(mutex);
    // Of rows with more slabs than two, or such of several writes, or that overlap.
    absl::flat_hash_map<uint32_t, std::vector<RowSlab>> more ABSL_GUARDED_BY(mutex);
  };
  struct Readable {
    std::array<std::atomic<bool>, kStoresMax> stores{};
  };
  // What a hit's row is.
  struct Found {
    LookupHit hit;
    Handle end = kNone;
    uint32_t opened = 0;
  };

  static uint32_t PartOfHash(uint64_t block_hash) {
    return static_cast<uint32_t>(block_hash % kParts);
  }
  static Handle HandleOf(uint32_t part, uint32_t entry) { return part << (32 - kPartBits) | entry; }
  static uint32_t PartOf(Handle handle) { return handle >> (32 - kPartBits); }
  static uint32_t EntryOf(Handle handle) { return handle & (LookupPart::kEntriesMax - 1); }
  RowPart& RowPartOf(uint32_t row) const { return (*row_parts_)[row % kParts]; }
  // Null: no row had this id yet.
  static Row* Find(RowPart& part, uint32_t row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(part.mutex);
  static Row& Make(RowPart& part, uint32_t row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(part.mutex);

  // The handle of the entry; kNone: its part is full.
  Handle Add(const FiledCutPoint& point, uint32_t row, int32_t last_used_s, Handle next);
  // Runs `action(part, entry)`, which returns the next handle, over a row's cut points.
  template <typename Action>
  void ForChain(Handle first, const Action& action);
  static void Fill(RowPart& part, const RowOpened& opened, Row* row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(part.mutex);
  void SweepRow(uint32_t id);
  bool MayBeRead(const RowPart& part, uint32_t id, const Row& row) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(part.mutex);
  // Calls `visit(point, last_used_s)` for the cut points of an open row, the longest first, until
  // that says false. Whether the row was open all the time; if not, what was visited may have been
  // another's.
  template <typename Visit>
  bool VisitCutPoints(uint32_t id, NamespaceId* key_namespace, const Visit& visit) const;
  void Prefetch(uint32_t id) const;
  // Copies the row if it may be read.
  bool Take(uint32_t id, Found* found) const;
  // Adds what the row's end says. False: the row was closed meanwhile.
  bool TakeEnd(Found* found) const;
  std::optional<LookupHit> LookupOnce(const LookupQuery& query, bool* closed) const;

  std::unique_ptr<std::array<Part, kParts>> parts_;
  std::unique_ptr<std::array<RowPart, kParts>> row_parts_;
  std::unique_ptr<Readable> readable_;
  mutable Mutex names_mutex_;
  std::map<NamespaceId, slab::KeyNamespace> namespaces_ ABSL_GUARDED_BY(names_mutex_);
  std::vector<Store> stores_ ABSL_GUARDED_BY(names_mutex_);

  std::atomic<size_t> rows_open_{0};
  std::atomic<size_t> cut_points_{0};
  std::atomic<uint32_t> rows_end_{0};  // above every row that was ever opened
  GoneRows gone_{kGonePointsMax};
  // Of the writer's thread.
  size_t parked_ = 0;
  uint32_t sweep_next_ = 0;
  bool sweep_due_ = false;
};

}  // namespace kvmesh::meta
