#include "services/shard/engine/block_pool.h"

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "services/shard/engine/huge_pages.h"

namespace kvmesh::shard {
namespace {

// At least so many blocks in a chunk, so that its end wastes little.
constexpr size_t kBlocksMin = 16;
// Behind each block, poisoned.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kGap = 64;
#else
constexpr size_t kGap = 0;
#endif

}  // namespace

// Not a lambda: it names a private type. Holds the pool, which owns what it was given.
struct BlockPool::GiveBack {
  std::shared_ptr<BlockPool> pool;
  Chunks::iterator chunk;
  void operator()(uint8_t* block) const noexcept { pool->Return(chunk, block); }
};

std::shared_ptr<BlockPool> BlockPool::Make(size_t block_bytes) {
  return std::shared_ptr<BlockPool>(new BlockPool(block_bytes));
}

BlockPool::BlockPool(size_t block_bytes)
    : block_bytes_(block_bytes),
      stride_(RoundUp(block_bytes + kGap, kAlignment)),
      chunk_bytes_(RoundUp(kBlocksMin * stride_, kHugePage)),
      idle_chunks_max_(std::max<size_t>(kIdleBytesMax / chunk_bytes_, 1)) {}

// Whoever maps these addresses next must find them unpoisoned.
BlockPool::~BlockPool() {
  for (const Chunk& chunk : open_) ASAN_UNPOISON_MEMORY_REGION(chunk.memory.get(), chunk_bytes_);
}

size_t BlockPool::mapped_bytes() const {
  MutexLock lock(&mutex_);
  return (open_.size() + full_.size()) * chunk_bytes_;
}

std::shared_ptr<uint8_t> BlockPool::Allocate() {
  Chunks::iterator chunk;
  uint8_t* block = Take(&chunk);
  return {block, GiveBack{.pool = shared_from_this(), .chunk = chunk}};
}

uint8_t* BlockPool::Take(Chunks::iterator* chunk) {
  uint8_t* recycled = nullptr;
  {
    MutexLock lock(&mutex_);
    if (open_.empty()) {
      std::shared_ptr<uint8_t> memory = MapHugePages(chunk_bytes_);
      if (memory == nullptr) throw std::bad_alloc();
      open_.push_back({.memory = std::move(memory)});
      ASAN_POISON_MEMORY_REGION(open_.back().memory.get(), chunk_bytes_);
      ++idle_;
    }
    *chunk = open_.begin();
    Chunk& from = **chunk;
    if (from.used++ == 0) --idle_;
    if (from.free == nullptr) {
      uint8_t* fresh = from.memory.get() + from.fresh++ * stride_;
      if (IsFull(from)) full_.splice(full_.begin(), open_, *chunk);
      ASAN_UNPOISON_MEMORY_REGION(fresh, block_bytes_);
      return fresh;
    }
    recycled = reinterpret_cast<uint8_t*>(from.free);
    ASAN_UNPOISON_MEMORY_REGION(recycled, block_bytes_);
    from.free = from.free->next;
    if (IsFull(from)) full_.splice(full_.begin(), open_, *chunk);
  }
  std::memset(recycled, 0, block_bytes_);
  return recycled;
}

void BlockPool::Return(Chunks::iterator chunk, uint8_t* block) noexcept {
  std::shared_ptr<uint8_t> unmapped;  // outside the lock
  MutexLock lock(&mutex_);
  if (IsFull(*chunk)) open_.splice(open_.begin(), full_, chunk);
  chunk->free = new (block) FreeBlock{chunk->free};
  ASAN_POISON_MEMORY_REGION(block, stride_);
  if (--chunk->used > 0) return;
  if (idle_ == idle_chunks_max_) {
    ASAN_UNPOISON_MEMORY_REGION(chunk->memory.get(), chunk_bytes_);
    unmapped = std::move(chunk->memory);
    open_.erase(chunk);
    return;
  }
  ++idle_;
  open_.splice(open_.end(), open_, chunk);
}

}  // namespace kvmesh::shard
