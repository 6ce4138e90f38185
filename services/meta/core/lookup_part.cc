#include "services/meta/core/lookup_part.h"

#include <algorithm>

namespace kvmesh::meta {
namespace {

// A length within one KiB and the count of its keys, packed.
constexpr uint32_t kLengthBits = 10;
constexpr uint32_t kLengthMask = (1U << kLengthBits) - 1;
constexpr uint32_t kCountMax = ~uint32_t{0} >> kLengthBits;
static_assert(kLengthMask + 1 == kBlockBytes);

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
    : by_block_(0, BlockHasher{this}, BlockEqual{this}),
      by_key_(0, KeyHasher{this}, KeyEqual{this}) {}

size_t LookupPart::BlockHasher::operator()(uint64_t block_hash) const {
  return Mix(block_hash);
}

size_t LookupPart::KeyHasher::operator()(const Path& path) const {
  return Mix(path.block_hash ^ (uint64_t{path.tail_hash} << 32 | path.text_bytes));
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

uint32_t LookupPart::Add(const FiledCutPoint& point, uint32_t row, uint32_t next_of_row) {
  const uint32_t added = NewEntry();
  if (added == kNone) return kNone;
  Entry& entry = At(added);
  entry = {.key = point.key,
           .block_hash = {static_cast<uint32_t>(point.block_hash),
                          static_cast<uint32_t>(point.block_hash >> 32)},
           .tail_hash = point.tail_hash,
           .text_bytes = point.text_bytes,
           .token_count = point.token_count,
           .row = row,
           .newer = kNone,
           .older = kNone,
           .next_of_row = next_of_row};
  const auto slot = by_block_.find(point.block_hash);
  if (slot == by_block_.end()) {
    by_block_.insert(Slot{added});
    return added;
  }
  if ((slot->value & kBlockBit) == 0) {
    if (At(slot->value).key == point.key) {
      LinkBefore(added, slot->value);
      slot->value = added;
      return added;
    }
    const uint32_t lone = slot->value;
    const uint32_t block = NewBlock(point.block_hash);
    slot->value = block | kBlockBit;
    FileKey(blocks_[block], lone);
  }
  const auto filed = by_key_.find(ExactPath{PathOf(entry), entry.key});
  if (filed == by_key_.end()) {
    FileKey(blocks_[slot->value & ~kBlockBit], added);
  } else {
    LinkBefore(added, filed->newest);
    filed->newest = added;
  }
  return added;
}

void LookupPart::FileKey(Block& block, uint32_t entry) {
  by_key_.insert(FiledKey{entry});
  const uint32_t length = At(entry).text_bytes % kBlockBytes;
  auto at = std::lower_bound(block.lengths.begin(), block.lengths.end(), length,
                             [](uint32_t packed, uint32_t n) { return LengthOf(packed) < n; });
  if (at == block.lengths.end() || LengthOf(*at) != length) at = block.lengths.insert(at, length);
  if (CountOf(*at) < kCountMax) *at += 1U << kLengthBits;
}

void LookupPart::LinkBefore(uint32_t entry, uint32_t newest) {
  At(entry).older = newest;
  At(entry).newer = kNone;
  At(newest).newer = entry;
}

uint32_t& LookupPart::NewestOf(const Entry& entry) {
  const auto slot = by_block_.find(entry.hash64());
  if ((slot->value & kBlockBit) == 0) return slot->value;
  return by_key_.find(ExactPath{PathOf(entry), entry.key})->newest;
}

uint32_t LookupPart::Touch(uint32_t entry) {
  Entry& touched = At(entry);
  if (touched.newer == kNone) return touched.next_of_row;
  At(touched.newer).older = touched.older;
  if (touched.older != kNone) At(touched.older).newer = touched.newer;
  uint32_t& newest = NewestOf(touched);
  LinkBefore(entry, newest);
  newest = entry;
  return touched.next_of_row;
}

uint32_t LookupPart::Remove(uint32_t entry) {
  Entry& removed = At(entry);
  if (removed.newer != kNone) {
    At(removed.newer).older = removed.older;
  } else if (removed.older != kNone) {
    NewestOf(removed) = removed.older;
  } else {
    UnfileKey(removed);
  }
  if (removed.older != kNone) At(removed.older).newer = removed.newer;
  const uint32_t next_of_row = removed.next_of_row;
  removed.next_of_row = free_;
  free_ = entry;
  ++free_count_;
  return next_of_row;
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

LookupPart::Hit LookupPart::HitOf(uint32_t entry) const {
  const Entry& hit = At(entry);
  return {
      .row = hit.row, .token_count = hit.token_count, .text_bytes = hit.text_bytes, .key = hit.key};
}

std::optional<LookupPart::Hit> LookupPart::Longest(const LookupQuery& query, uint32_t blocks,
                                                   uint64_t block_hash) const {
  const auto slot = by_block_.find(block_hash);
  if (slot == by_block_.end()) return std::nullopt;
  if ((slot->value & kBlockBit) != 0) {
    return LongestOf(blocks_[slot->value & ~kBlockBit], query, blocks);
  }
  const Entry& lone = At(slot->value);
  // Equal block hashes of other block counts are not to be had, but nothing else excludes them.
  if (lone.text_bytes / kBlockBytes != blocks) return std::nullopt;
  const uint32_t length = lone.text_bytes % kBlockBytes;
  if (length > query.TailBytes(blocks)) return std::nullopt;
  if (query.Key(blocks, length) != lone.key) return std::nullopt;
  return HitOf(slot->value);
}

std::optional<LookupPart::Hit> LookupPart::LongestOf(const Block& block, const LookupQuery& query,
                                                     uint32_t blocks) const {
  const uint32_t tail_bytes = query.TailBytes(blocks);
  auto end = std::upper_bound(block.lengths.begin(), block.lengths.end(), tail_bytes,
                              [](uint32_t n, uint32_t packed) { return n < LengthOf(packed); });
  if (end == block.lengths.begin()) return std::nullopt;
  std::array<uint32_t, kBlockBytes> hashes;
  query.TailHashes(blocks, absl::MakeSpan(hashes).first(LengthOf(*(end - 1)) + 1));
  while (end != block.lengths.begin()) {
    const uint32_t length = LengthOf(*--end);
    const Path path{block.block_hash, blocks * kBlockBytes + length, hashes[length]};
    if (!by_key_.contains(path)) continue;
    const Sha256Digest key = query.Key(blocks, length);
    const auto filed = by_key_.find(ExactPath{path, key});
    if (filed != by_key_.end()) return HitOf(filed->newest);
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
