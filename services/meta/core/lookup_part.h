// One part of the lookup index: the cut points of readable rows whose block hash falls into it.
//
// Cut points are filed under their block hash, below that under their length and tail hash. A query
// asks a block hash for its longest cut point that is a prefix of the prompt; the tail hash only
// chooses whose key is recomputed, the key decides. Cut points of equal keys, one of each row, form
// a list, last used first (in seconds, and of what is filed late only roughly); the first one whose
// row may be read is offered. Rows that may not be read for long are parked: filed nowhere.
//
// Pure; the reads are const and may run side by side, writes exclude everything else.
// Invariant: a block hash of a single key is filed without tables of its own, so that an inner cut
// point that no other text shares costs one entry and one slot: below 96 bytes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "common/base/ids.h"
#include "services/meta/core/lookup_query.h"

namespace kvmesh::meta {

// A length at which a row serves.
struct FiledCutPoint {
  Sha256Digest key;
  uint64_t block_hash = 0;
  uint32_t tail_hash = 0;
  uint32_t text_bytes = 0;
  uint32_t token_count = 0;
};

class LookupPart {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};
  // Entries that a part can hold.
  static constexpr uint32_t kEntriesMax = 1U << 26;

  LookupPart();
  LookupPart(const LookupPart&) = delete;  // its tables point to it
  LookupPart& operator=(const LookupPart&) = delete;

  // Files a cut point of `row`. `next_of_row` is kept for the caller, who chains what belongs to a
  // row. kNone: the part is full.
  uint32_t Add(const FiledCutPoint& point, uint32_t row, int32_t last_used_s, uint32_t next_of_row);
  // All return the entry's next_of_row.
  uint32_t Remove(uint32_t entry);
  uint32_t Touch(uint32_t entry, int32_t last_used_s);
  // Parked entries are met by no query. Each does nothing to one that is as it shall be.
  uint32_t Park(uint32_t entry);
  uint32_t Unpark(uint32_t entry);

  // A cut point that was or is filed.
  FiledCutPoint PointOf(uint32_t entry) const;
  uint32_t RowOf(uint32_t entry) const { return At(entry).row; }
  uint32_t NextOfRow(uint32_t entry) const { return At(entry).next_of_row; }
  int32_t LastUsed(uint32_t entry) const { return At(entry).last_used_s; }

  struct Hit {
    uint32_t row = 0;
    uint32_t token_count = 0;
    uint32_t text_bytes = 0;
    Sha256Digest key;
  };
  // Whether a row may be offered.
  using Accept = absl::FunctionRef<bool(uint32_t row)>;
  // Loads what Accept will read of a row, while its key is recomputed.
  using Prepare = absl::FunctionRef<void(uint32_t row)>;
  // So many rows of one key are asked for at most. More than that cannot be read only until they
  // are parked.
  static constexpr int kRowsAskedMax = 64;
  // The longest cut point under the block hash of the query's first `blocks` KiB that is a prefix
  // of its text and has a row that is accepted. Recomputes one key for each distinct length whose
  // tail hash is met.
  std::optional<Hit> Longest(const LookupQuery& query, uint32_t blocks, uint64_t block_hash,
                             Accept accept, Prepare prepare) const;

  // Loads what the first step of Longest will read.
  void Prefetch(uint64_t block_hash) const { by_block_.prefetch(block_hash); }

  size_t entries() const { return used_ - free_count_; }
  // Of everything that the part allocated.
  size_t memory_bytes() const;

 private:
  struct Entry {
    Sha256Digest key;
    std::array<uint32_t, 2> block_hash;  // low, high; as 64 bits it would pad the entry
    uint32_t tail_hash;
    uint32_t text_bytes;
    uint32_t token_count;
    uint32_t row;
    int32_t last_used_s;
    uint32_t newer;  // of the same key; the entry itself: it is parked
    uint32_t older;
    uint32_t next_of_row;

    uint64_t hash64() const { return uint64_t{block_hash[1]} << 32 | block_hash[0]; }
  };
  static_assert(sizeof(Entry) == 72);

  // A block hash of several keys: which lengths they have. The keys themselves are in keys_.
  struct Block {
    uint64_t block_hash = 0;
    // Ascending. Each is a length modulo one KiB and above it the count of its keys, which stays
    // at kCountMax once it got there.
    absl::InlinedVector<uint32_t, 4> lengths;
  };

  // What is filed under a block hash: its only key's newest entry or, with kBlockBit, a Block.
  // Mutable: it changes into what hashes alike.
  struct Slot {
    mutable uint32_t value;
  };
  static constexpr uint32_t kBlockBit = 1U << 31;
  enum class PathHash : uint32_t {};
  // A key's newest entry, mutable likewise, and what it hashes to: probes for keys that are not
  // there, of which a query may do a thousand, then read nothing but the table.
  struct FiledKey {
    mutable uint32_t newest;
    PathHash path_hash;
  };

  // What is known of a cut point before its key is.
  struct Path {
    uint64_t block_hash;
    uint32_t text_bytes;
    uint32_t tail_hash;
    friend bool operator==(const Path&, const Path&) = default;
  };
  struct ExactPath {
    Path path;
    const Sha256Digest& key;
  };

  static constexpr uint32_t kChunkEntries = 256;
  Entry& At(uint32_t entry) { return chunks_[entry / kChunkEntries][entry % kChunkEntries]; }
  const Entry& At(uint32_t entry) const {
    return chunks_[entry / kChunkEntries][entry % kChunkEntries];
  }
  static PathHash HashOf(const Path& path);
  static Path PathOf(const Entry& entry) {
    return {entry.hash64(), entry.text_bytes, entry.tail_hash};
  }
  uint64_t BlockHashOf(Slot slot) const {
    const bool is_block = (slot.value & kBlockBit) != 0;
    return is_block ? blocks_[slot.value & ~kBlockBit].block_hash : At(slot.value).hash64();
  }
  uint32_t NewEntry();
  uint32_t NewBlock(uint64_t block_hash);
  void File(uint32_t entry);
  void Unfile(uint32_t entry);
  // Puts an entry into the list of its key. Returns the newest one after that.
  uint32_t Link(uint32_t entry, uint32_t newest);
  void FileKey(Block& block, uint32_t entry);
  void UnfileKey(const Entry& entry);
  // Where it is filed which entry of this one's key is the newest.
  uint32_t& NewestOf(const Entry& entry);
  // The first of a key's rows that is accepted.
  std::optional<Hit> FirstOf(uint32_t newest, Accept accept) const;
  std::optional<Hit> LongestOf(const Block& block, const LookupQuery& query, uint32_t blocks,
                               Accept accept, Prepare prepare) const;

  std::vector<std::unique_ptr<Entry[]>> chunks_;
  uint32_t used_ = 0;      // entries handed out, freed ones included
  uint32_t free_ = kNone;  // chained by next_of_row
  uint32_t free_count_ = 0;
  std::vector<Block> blocks_;
  std::vector<uint32_t> free_blocks_;

  struct BlockHasher {
    using is_transparent = void;
    const LookupPart* part;
    size_t operator()(uint64_t block_hash) const;
    size_t operator()(Slot slot) const { return (*this)(part->BlockHashOf(slot)); }
  };
  struct BlockEqual {
    using is_transparent = void;
    const LookupPart* part;
    bool operator()(Slot a, Slot b) const { return part->BlockHashOf(a) == part->BlockHashOf(b); }
    bool operator()(Slot a, uint64_t b) const { return part->BlockHashOf(a) == b; }
  };
  struct KeyHasher {
    using is_transparent = void;
    size_t operator()(PathHash hash) const;
    size_t operator()(FiledKey key) const { return (*this)(key.path_hash); }
    size_t operator()(const ExactPath& exact) const { return (*this)(HashOf(exact.path)); }
  };
  struct KeyEqual {
    using is_transparent = void;
    const LookupPart* part;
    bool operator()(FiledKey a, FiledKey b) const {
      return a.path_hash == b.path_hash && part->At(a.newest).key == part->At(b.newest).key;
    }
    bool operator()(FiledKey a, PathHash b) const { return a.path_hash == b; }
    bool operator()(FiledKey a, const ExactPath& b) const {
      return a.path_hash == HashOf(b.path) && PathOf(part->At(a.newest)) == b.path &&
             part->At(a.newest).key == b.key;
    }
  };
  // Each block hash once.
  absl::flat_hash_set<Slot, BlockHasher, BlockEqual> by_block_;
  // Each key of the block hashes that have a Block.
  absl::flat_hash_set<FiledKey, KeyHasher, KeyEqual> by_key_;
};

}  // namespace kvmesh::meta
