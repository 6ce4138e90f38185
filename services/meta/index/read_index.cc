#include "services/meta/index/read_index.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvmesh::meta {
namespace {

// A row that a lookup found is closed before it was copied: it is looked up again so often.
constexpr int kAttempts = 4;
// Blocks whose place in the index is loaded before they are looked at.
constexpr uint32_t kBlocksAhead = 4;

int32_t Seconds(MonoTime time) {
  return static_cast<int32_t>(std::clamp<int64_t>(absl::ToInt64Seconds(time),
                                                  std::numeric_limits<int32_t>::min(),
                                                  std::numeric_limits<int32_t>::max()));
}

FiledCutPoint EndOf(const RowOpened& row) {
  return {.key = row.key,
          .block_hash = row.block_hash,
          .tail_hash = row.tail_hash,
          .text_bytes = row.text_bytes,
          .token_count = row.token_count};
}

FiledCutPoint Filed(const slab::CutPoint& point) {
  return {.key = point.key,
          .block_hash = point.block_hash,
          .tail_hash = point.tail_hash,
          .text_bytes = point.text_bytes,
          .token_count = point.token_count};
}

// One write's slabs, at most `count_max`, each beginning where the one before ends.
bool FitsInline(const std::vector<RowSlab>& slabs, size_t count_max) {
  uint32_t end = 0;
  for (const RowSlab& slab : slabs) {
    if (slab.layers.begin != end || slab.write_id != slabs.front().write_id) return false;
    end = slab.layers.end;
  }
  return !slabs.empty() && slabs.size() <= count_max;
}

}  // namespace

ReadIndex::ReadIndex()
    : parts_(std::make_unique<std::array<Part, kParts>>()),
      row_parts_(std::make_unique<std::array<RowPart, kParts>>()),
      readable_(std::make_unique<Readable>()) {}

ReadIndex::Row* ReadIndex::Find(RowPart& part, uint32_t row) {
  const uint32_t at = row / kParts;
  if (at / kChunkRows >= part.chunks.size()) return nullptr;
  return &part.chunks[at / kChunkRows][at % kChunkRows];
}

ReadIndex::Row& ReadIndex::Make(RowPart& part, uint32_t row) {
  while (row / kParts / kChunkRows >= part.chunks.size()) {
    part.chunks.push_back(std::make_unique<Row[]>(kChunkRows));
  }
  return *Find(part, row);
}

void ReadIndex::Apply(const NamespaceOpened& opened) {
  MutexLock lock(&names_mutex_);
  namespaces_[opened.id] = opened.key_namespace;
}

void ReadIndex::Apply(const NamespaceClosed& closed) {
  MutexLock lock(&names_mutex_);
  namespaces_.erase(closed.id);
}

void ReadIndex::Apply(const StoreOpened& store) {
  const auto slot = static_cast<size_t>(store.slot);
  MutexLock lock(&names_mutex_);
  if (slot >= stores_.size()) stores_.resize(slot + 1);
  stores_[slot] = {.uid = store.uid, .address = store.address, .tier = store.tier};
}

void ReadIndex::Apply(const StoreReadable& store) {
  const auto slot = static_cast<size_t>(store.slot);
  if (slot >= kStoresMax) return;
  if (readable_->stores[slot].exchange(store.readable) == store.readable) return;
  // Rows that were opened while their store could not be read yet are filed; only those that a
  // store was lost for are parked.
  if (store.readable && parked_ == 0) return;
  sweep_due_ = true;
  sweep_next_ = 0;
}

ReadIndex::Handle ReadIndex::Add(const FiledCutPoint& point, uint32_t row, int32_t last_used_s,
                                 Handle next) {
  const uint32_t at = PartOfHash(point.block_hash);
  Part& part = (*parts_)[at];
  MutexLock lock(&part.mutex);
  const uint32_t entry = part.cut_points.Add(point, row, last_used_s, next);
  return entry == LookupPart::kNone ? kNone : HandleOf(at, entry);
}

template <typename Action>
void ReadIndex::ForChain(Handle first, const Action& action) {
  for (Handle handle = first; handle != kNone;) {
    Part& part = (*parts_)[PartOf(handle)];
    MutexLock lock(&part.mutex);
    handle = action(part.cut_points, EntryOf(handle));
  }
}

void ReadIndex::Apply(const RowOpened& opened) {
  const auto id = static_cast<uint32_t>(opened.row);
  if (id >= rows_end_.load(std::memory_order_relaxed)) rows_end_.store(id + 1);
  const int32_t last_used_s = Seconds(opened.last_used);
  // The end is filed last, so that it heads the chain.
  Handle first = kNone;
  bool full = false;
  const auto add = [&](const FiledCutPoint& point) {
    const Handle added = full ? kNone : Add(point, id, last_used_s, first);
    full = added == kNone;
    if (!full) first = added;
  };
  for (const slab::CutPoint& point : opened.cut_points) add(Filed(point));
  add(EndOf(opened));
  if (full) {
    ForChain(first, [](LookupPart& part, uint32_t entry) { return part.Remove(entry); });
    return;
  }
  RowPart& part = RowPartOf(id);
  MutexLock lock(&part.mutex);
  Row& row = Make(part, id);
  Fill(part, opened, &row);
  row.first = first;
  row.open = true;
  ++row.opened;
  rows_open_.fetch_add(1, std::memory_order_relaxed);
  cut_points_.fetch_add(opened.cut_points.size() + 1, std::memory_order_relaxed);
}

void ReadIndex::Fill(RowPart& part, const RowOpened& opened, Row* row) {
  row->tokens_sha256 = opened.tokens_sha256;
  row->key_namespace = opened.key_namespace;
  row->slab_count = 0;
  row->parked = false;
  if (!FitsInline(opened.slabs, kSlabsInline)) {
    part.more[static_cast<uint32_t>(opened.row)] = opened.slabs;
    return;
  }
  row->write_id = opened.slabs.front().write_id;
  for (const RowSlab& slab : opened.slabs) {
    row->slabs[row->slab_count++] = {
        .layer_end = static_cast<uint16_t>(slab.layers.end),
        .slot = slab.slot,
        .size_pages = static_cast<uint32_t>(slab.size_bytes / kPageBytes)};
  }
}

void ReadIndex::Apply(const RowClosed& closed) {
  const auto id = static_cast<uint32_t>(closed.row);
  RowPart& part = RowPartOf(id);
  Handle first = kNone;
  {
    MutexLock lock(&part.mutex);
    Row* row = Find(part, id);
    if (row == nullptr || !row->open) return;
    // From here on nobody takes the row, though its cut points may still be met.
    row->open = false;
    part.more.erase(id);
    first = row->first;
    if (row->parked) --parked_;
  }
  std::vector<FiledCutPoint> points;  // the end first
  ForChain(first, [&](LookupPart& cut_points, uint32_t entry) {
    points.push_back(cut_points.PointOf(entry));
    return cut_points.Remove(entry);
  });
  rows_open_.fetch_sub(1, std::memory_order_relaxed);
  cut_points_.fetch_sub(points.size(), std::memory_order_relaxed);
  if (!points.empty()) gone_.Add(points.front(), points, closed.cause, closed.at);
}

void ReadIndex::Apply(const RowUsed& used) {
  const auto id = static_cast<uint32_t>(used.row);
  RowPart& part = RowPartOf(id);
  Handle first = kNone;
  {
    MutexLock lock(&part.mutex);
    const Row* row = Find(part, id);
    if (row == nullptr || !row->open) return;
    first = row->first;
  }
  const int32_t last_used_s = Seconds(used.last_used);
  ForChain(first, [&](LookupPart& cut_points, uint32_t entry) {
    return cut_points.Touch(entry, last_used_s);
  });
}

bool ReadIndex::Sweep(size_t rows_max) {
  if (!sweep_due_) return false;
  for (size_t swept = 0; swept < rows_max; ++swept) {
    if (sweep_next_ >= rows_end_.load(std::memory_order_relaxed)) {
      sweep_due_ = false;
      return false;
    }
    SweepRow(sweep_next_++);
  }
  return true;
}

void ReadIndex::SweepRow(uint32_t id) {
  RowPart& part = RowPartOf(id);
  Handle first = kNone;
  bool park = false;
  {
    MutexLock lock(&part.mutex);
    Row* row = Find(part, id);
    if (row == nullptr || !row->open) return;
    park = !MayBeRead(part, id, *row);
    if (row->parked == park) return;
    row->parked = park;
    first = row->first;
  }
  park ? ++parked_ : --parked_;
  ForChain(first, [&](LookupPart& cut_points, uint32_t entry) {
    return park ? cut_points.Park(entry) : cut_points.Unpark(entry);
  });
}

bool ReadIndex::MayBeRead(const RowPart& part, uint32_t id, const Row& row) const {
  const auto readable = [this](const auto& slab) {
    const auto slot = static_cast<size_t>(slab.slot);
    return slot < kStoresMax && readable_->stores[slot].load(std::memory_order_acquire);
  };
  if (row.slab_count > 0) {
    return std::all_of(row.slabs.begin(), row.slabs.begin() + row.slab_count, readable);
  }
  const auto more = part.more.find(id);
  return more != part.more.end() && std::all_of(more->second.begin(), more->second.end(), readable);
}

void ReadIndex::Prefetch(uint32_t id) const {
  RowPart& part = RowPartOf(id);
  MutexLock lock(&part.mutex);
  const Row* row = Find(part, id);
  if (row == nullptr) return;
  __builtin_prefetch(row);
  __builtin_prefetch(reinterpret_cast<const char*>(row) + sizeof(Row) - 1);
}

bool ReadIndex::Take(uint32_t id, Found* found) const {
  RowPart& part = RowPartOf(id);
  MutexLock lock(&part.mutex);
  const Row* row = Find(part, id);
  if (row == nullptr || !row->open || !MayBeRead(part, id, *row)) return false;
  found->hit.row = RowId{id};
  found->hit.tokens_sha256 = row->tokens_sha256;
  found->end = row->first;
  found->opened = row->opened;
  if (row->slab_count == 0) {
    found->hit.slabs = part.more.at(id);
    return true;
  }
  found->hit.slabs.reserve(row->slab_count);
  uint32_t begin = 0;
  for (size_t i = 0; i < row->slab_count; ++i) {
    const PackedSlab& slab = row->slabs[i];
    found->hit.slabs.push_back({.layers = {.begin = begin, .end = slab.layer_end},
                                .write_id = row->write_id,
                                .slot = slab.slot,
                                .size_bytes = slab.size_pages * kPageBytes});
    begin = slab.layer_end;
  }
  return true;
}

bool ReadIndex::TakeEnd(Found* found) const {
  {
    const Part& part = (*parts_)[PartOf(found->end)];
    MutexLock lock(&part.mutex);
    const FiledCutPoint end = part.cut_points.PointOf(EntryOf(found->end));
    found->hit.row_key = end.key;
    found->hit.row_token_count = end.token_count;
    found->hit.row_text_bytes = end.text_bytes;
  }
  // The entry may have been another row's by then, but only if this row had been closed before.
  RowPart& part = RowPartOf(static_cast<uint32_t>(found->hit.row));
  MutexLock lock(&part.mutex);
  const Row* row = Find(part, static_cast<uint32_t>(found->hit.row));
  return row->open && row->opened == found->opened;
}

std::optional<LookupHit> ReadIndex::LookupOnce(const LookupQuery& query, bool* closed) const {
  std::array<uint64_t, kBlocksAhead> ahead;
  const auto prefetch = [&](uint32_t blocks) {
    const uint64_t block_hash = query.BlockHash(blocks);
    ahead[blocks % kBlocksAhead] = block_hash;
    const Part& part = (*parts_)[PartOfHash(block_hash)];
    MutexLock lock(&part.mutex);
    part.cut_points.Prefetch(block_hash);
  };
  for (uint32_t i = 0; i < std::min(kBlocksAhead, query.blocks() + 1); ++i) {
    prefetch(query.blocks() - i);
  }
  for (uint32_t left = query.blocks() + 1; left > 0; --left) {
    const uint32_t blocks = left - 1;
    const uint64_t block_hash = ahead[blocks % kBlocksAhead];
    if (blocks >= kBlocksAhead) prefetch(blocks - kBlocksAhead);
    Found found;
    std::optional<LookupPart::Hit> hit;
    {
      const Part& part = (*parts_)[PartOfHash(block_hash)];
      MutexLock lock(&part.mutex);
      hit = part.cut_points.Longest(
          query, blocks, block_hash, [&](uint32_t row) { return Take(row, &found); },
          [this](uint32_t row) { Prefetch(row); });
    }
    if (!hit) continue;
    if (!TakeEnd(&found)) {
      *closed = true;
      return std::nullopt;
    }
    found.hit.key = hit->key;
    found.hit.token_count = hit->token_count;
    found.hit.text_bytes = hit->text_bytes;
    return std::move(found.hit);
  }
  return std::nullopt;
}

std::optional<LookupHit> ReadIndex::Lookup(const LookupQuery& query,
                                           uint32_t token_count_min) const {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    bool closed = false;
    std::optional<LookupHit> hit = LookupOnce(query, &closed);
    if (closed) continue;
    // A shorter prefix has no more tokens.
    if (hit && hit->token_count < token_count_min) return std::nullopt;
    return hit;
  }
  return std::nullopt;
}

ReadIndex::Store ReadIndex::StoreAt(StoreSlot slot) const {
  MutexLock lock(&names_mutex_);
  const auto at = static_cast<size_t>(slot);
  return at < stores_.size() ? stores_[at] : Store();
}

std::vector<slab::KeyNamespace> ReadIndex::Namespaces(size_t count_max) const {
  std::vector<slab::KeyNamespace> found;
  MutexLock lock(&names_mutex_);
  found.reserve(std::min(count_max, namespaces_.size()));
  for (const auto& [id, key_namespace] : namespaces_) {
    if (found.size() == count_max) break;
    found.push_back(key_namespace);
  }
  return found;
}

size_t ReadIndex::memory_bytes() const {
  size_t bytes = sizeof(*parts_) + sizeof(*row_parts_) + sizeof(*readable_);
  for (const Part& part : *parts_) {
    MutexLock lock(&part.mutex);
    bytes += part.cut_points.memory_bytes();
  }
  for (RowPart& part : *row_parts_) {
    MutexLock lock(&part.mutex);
    bytes += part.chunks.size() * kChunkRows * sizeof(Row) +
             part.chunks.capacity() * sizeof(part.chunks[0]);
    bytes += part.more.capacity() * (sizeof(*part.more.begin()) + 1);
    for (const auto& [id, slabs] : part.more) bytes += slabs.capacity() * sizeof(RowSlab);
  }
  return bytes;
}

}  // namespace kvmesh::meta
