#include "services/meta/core/lookup_part.h"

#include <algorithm>

namespace kvmesh::meta {
namespace {

// A length within one KiB and the count of its keys, packed.
constexpr uint32_t kLengthBits = 10;
constexpr uint32_t kLengthMask = (1U << kLengthBits) - 1;
constexpr uint32_t kCountMax = ~uint32_t{0} >> kLengthBits;
static_assert(kLengthMask + 1 == kBlockBytes);

constexpr std::ptrdiff_t kProbesAhead = 16;
// What is filed late goes at most so far behind the newest of its key.
constexpr int kLinkStepsMax = 8;

uint32_t LengthOf(uint32_t packed) {
  return packed & kLengthMask;
}

uint32_t CountOf(uint32_t packed) {
  return packed >> kLengthBits;
}

// The finaliser of MurmurHash3: block hashes are random, lengths and tail hashes are not.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDULL;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ULL;
  return x ^ (x >> 33);
}

}  // namespace

LookupPart::LookupPart()
    : by_block_(0, BlockHasher{this}, BlockEqual{this}), by_key_(0, KeyHasher{}, KeyEqual{this}) {}

size_t LookupPart::BlockHasher::operator()(uint64_t block_hash) const {
  return Mix(block_hash);
}

LookupPart::PathHash LookupPart::HashOf(const Path& path) {
  return PathHash{static_cast<uint32_t>(path.block_hash) ^
                  (path.tail_hash + path.text_bytes * 0x9E3779B1U)};
}

size_t LookupPart::KeyHasher::operator()(PathHash hash) const {
  const uint64_t product = static_cast<uint64_t>(hash) * 0x9E3779B97F4A7C15ULL;
  return product ^ product >> 32;
}

uint32_t LookupPart::NewEntry() {
  if (free_ != kNone) {
    const uint32_t entry = free_;
    free_ = At(entry).next_of_row;
    --free_count_;
    return entry;
  }
  if (used_ == kEntriesMax) return kNone;
  if (used_ % kChunkEntries == 0) chunks_.push_back(std::make_unique<Entry[]>(kChunkEntries));
  return used_++;
}

uint32_t LookupPart::NewBlock(uint64_t block_hash) {
  if (free_blocks_.empty()) {
    blocks_.emplace_back();
    free_blocks_.push_back(static_cast<uint32_t>(blocks_.size() - 1));
  }
  const uint32_t block = free_blocks_.back();
  free_blocks_.pop_back();
  blocks_[block].block_hash = block_hash;
  return block;
}

uint32_t LookupPart::Add(const FiledCutPoint& point, uint32_t row, int32_t last_used_s,
                         uint32_t next_of_row) {
  const uint32_t added = NewEntry();
  if (added == kNone) return kNone;
  At(added) = {.key = point.key,
               .block_hash = {static_cast<uint32_t>(point.block_hash),
                              static_cast<uint32_t>(point.block_hash >> 32)},
               .tail_hash = point.tail_hash,
               .text_bytes = point.text_bytes,
               .token_count = point.token_count,
               .row = row,
               .last_used_s = last_used_s,
               .newer = kNone,
               .older = kNone,
               .next_of_row = next_of_row};
  File(added);
  return added;
}

uint32_t LookupPart::Remove(uint32_t entry) {
  const uint32_t next_of_row = Park(entry);
  At(entry).next_of_row = free_;
  free_ = entry;
  ++free_count_;
  return next_of_row;
}

uint32_t LookupPart::Touch(uint32_t entry, int32_t last_used_s) {
  Entry& touched = At(entry);
  touched.last_used_s = last_used_s;
  if (touched.newer == kNone || touched.newer == entry) return touched.next_of_row;
  At(touched.newer).older = touched.older;
  if (touched.older != kNone) At(touched.older).newer = touched.newer;
  uint32_t& newest = NewestOf(touched);
  newest = Link(entry, newest);
  return touched.next_of_row;
}

uint32_t LookupPart::Park(uint32_t entry) {
  if (At(entry).newer != entry) Unfile(entry);
  At(entry).newer = entry;
  return At(entry).next_of_row;
}

uint32_t LookupPart::Unpark(uint32_t entry) {
  if (At(entry).newer == entry) File(entry);
  return At(entry).next_of_row;
}

FiledCutPoint LookupPart::PointOf(uint32_t entry) const {
  const Entry& point = At(entry);
  return {.key = point.key,
          .block_hash = point.hash64(),
          .tail_hash = point.tail_hash,
          .text_bytes = point.text_bytes,
          .token_count = point.token_count};
}

void LookupPart::File(uint32_t entry) {
  Entry& filed = At(entry);
  filed.newer = filed.older = kNone;
  const auto slot = by_block_.find(filed.hash64());
  if (slot == by_block_.end()) {
    by_block_.insert(Slot{entry});
    return;
  }
  if ((slot->value & kBlockBit) == 0) {
    const uint32_t lone = slot->value;
    if (At(lone).key == filed.key) {
      slot->value = Link(entry, lone);
      return;
    }
    const uint32_t block = NewBlock(filed.hash64());
    slot->value = block | kBlockBit;
    FileKey(blocks_[block], lone);
  }
  const auto key = by_key_.find(ExactPath{PathOf(filed), filed.key});
  if (key == by_key_.end()) {
    FileKey(blocks_[slot->value & ~kBlockBit], entry);
  } else {
    key->newest = Link(entry, key->newest);
  }
}

void LookupPart::FileKey(Block& block, uint32_t entry) {
  by_key_.insert(FiledKey{entry, HashOf(PathOf(At(entry)))});
  const uint32_t length = At(entry).text_bytes % kBlockBytes;
  auto at = std::lower_bound(block.lengths.begin(), block.lengths.end(), length,
                             [](uint32_t packed, uint32_t n) { return LengthOf(packed) < n; });
  if (at == block.lengths.end() || LengthOf(*at) != length) at = block.lengths.insert(at, length);
  if (CountOf(*at) < kCountMax) *at += 1U << kLengthBits;
}

uint32_t LookupPart::Link(uint32_t entry, uint32_t newest) {
  Entry& linked = At(entry);
  if (At(newest).last_used_s <= linked.last_used_s) {
    linked.newer = kNone;
    linked.older = newest;
    At(newest).newer = entry;
    return entry;
  }
  uint32_t before = newest;
  for (int steps = 0; steps < kLinkStepsMax; ++steps) {
    const uint32_t next = At(before).older;
    if (next == kNone || At(next).last_used_s <= linked.last_used_s) break;
    before = next;
  }
  linked.newer = before;
  linked.older = At(before).older;
  if (linked.older != kNone) At(linked.older).newer = entry;
  At(before).older = entry;
  return newest;
}

uint32_t& LookupPart::NewestOf(const Entry& entry) {
  const auto slot = by_block_.find(entry.hash64());
  if ((slot->value & kBlockBit) == 0) return slot->value;
  return by_key_.find(ExactPath{PathOf(entry), entry.key})->newest;
}

void LookupPart::Unfile(uint32_t entry) {
  const Entry& removed = At(entry);
  if (removed.newer != kNone) {
    At(removed.newer).older = removed.older;
  } else if (removed.older != kNone) {
    NewestOf(removed) = removed.older;
  } else {
    UnfileKey(removed);
  }
  if (removed.older != kNone) At(removed.older).newer = removed.newer;
}

void LookupPart::UnfileKey(const Entry& entry) {
  const auto slot = by_block_.find(entry.hash64());
  if ((slot->value & kBlockBit) == 0) {
    by_block_.erase(slot);
    return;
  }
  by_key_.erase(by_key_.find(ExactPath{PathOf(entry), entry.key}));
  const uint32_t index = slot->value & ~kBlockBit;
  auto& lengths = blocks_[index].lengths;
  const auto at =
      std::lower_bound(lengths.begin(), lengths.end(), entry.text_bytes % kBlockBytes,
                       [](uint32_t packed, uint32_t n) { return LengthOf(packed) < n; });
  // A count that was cut off stays: the length is looked at in vain.
  if (CountOf(*at) == kCountMax) return;
  *at -= 1U << kLengthBits;
  if (CountOf(*at) == 0) lengths.erase(at);
  if (!lengths.empty()) return;
  by_block_.erase(slot);
  lengths.shrink_to_fit();
  free_blocks_.push_back(index);
}

std::optional<LookupPart::Hit> LookupPart::FirstOf(uint32_t newest, Accept accept) const {
  uint32_t entry = newest;
  for (int asked = 0; entry != kNone && asked < kRowsAskedMax; ++asked) {
    const Entry& hit = At(entry);
    if (accept(hit.row)) {
      return Hit{.row = hit.row,
                 .token_count = hit.token_count,
                 .text_bytes = hit.text_bytes,
                 .key = hit.key};
    }
    entry = hit.older;
  }
  return std::nullopt;
}

std::optional<LookupPart::Hit> LookupPart::Longest(const LookupQuery& query, uint32_t blocks,
                                                   uint64_t block_hash, Accept accept,
                                                   Prepare prepare) const {
  const auto slot = by_block_.find(block_hash);
  if (slot == by_block_.end()) return std::nullopt;
  if ((slot->value & kBlockBit) != 0) {
    return LongestOf(blocks_[slot->value & ~kBlockBit], query, blocks, accept, prepare);
  }
  const Entry& lone = At(slot->value);
  // Equal block hashes of other block counts are not to be had, but nothing else excludes them.
  if (lone.text_bytes / kBlockBytes != blocks) return std::nullopt;
  const uint32_t length = lone.text_bytes % kBlockBytes;
  if (length > query.TailBytes(blocks)) return std::nullopt;
  prepare(lone.row);
  if (query.Key(blocks, length) != lone.key) return std::nullopt;
  return FirstOf(slot->value, accept);
}

std::optional<LookupPart::Hit> LookupPart::LongestOf(const Block& block, const LookupQuery& query,
                                                     uint32_t blocks, Accept accept,
                                                     Prepare prepare) const {
  const uint32_t tail_bytes = query.TailBytes(blocks);
  const auto begin = block.lengths.begin();
  auto end = std::upper_bound(begin, block.lengths.end(), tail_bytes,
                              [](uint32_t n, uint32_t packed) { return n < LengthOf(packed); });
  if (end == begin) return std::nullopt;
  std::array<uint32_t, kBlockBytes> hashes;
  query.TailHashes(blocks, absl::MakeSpan(hashes).first(LengthOf(*(end - 1)) + 1));
  const auto path_of = [&](uint32_t packed) {
    const uint32_t length = LengthOf(packed);
    return Path{block.block_hash, blocks * kBlockBytes + length, hashes[length]};
  };
  // The tables and entries of a large index are in no near cache.
  for (auto ahead = end - std::min(end - begin, kProbesAhead); ahead != end; ++ahead) {
    by_key_.prefetch(HashOf(path_of(*ahead)));
  }
  while (end != begin) {
    if (end - begin > kProbesAhead) by_key_.prefetch(HashOf(path_of(*(end - kProbesAhead - 1))));
    const Path path = path_of(*--end);
    const auto probable = by_key_.find(HashOf(path));
    if (probable == by_key_.end()) continue;
    prepare(At(probable->newest).row);
    const Sha256Digest key = query.Key(blocks, LengthOf(*end));
    const auto filed = by_key_.find(ExactPath{path, key});
    if (filed == by_key_.end()) continue;
    if (auto hit = FirstOf(filed->newest, accept)) return hit;
  }
  return std::nullopt;
}

size_t LookupPart::memory_bytes() const {
  size_t lengths = 0;
  for (const Block& block : blocks_) {
    if (block.lengths.capacity() > 4) lengths += block.lengths.capacity() * sizeof(uint32_t);
  }
  return chunks_.size() * kChunkEntries * sizeof(Entry) + chunks_.capacity() * sizeof(chunks_[0]) +
         blocks_.capacity() * sizeof(Block) + lengths + free_blocks_.capacity() * sizeof(uint32_t) +
         by_block_.capacity() * (sizeof(Slot) + 1) + by_key_.capacity() * (sizeof(FiledKey) + 1);
}

}  // namespace kvmesh::meta
