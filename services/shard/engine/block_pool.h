// Blocks of one size for keys and values, on huge pages: attention streams them, and on small pages
// waits for the walk of each. Blocks of all sessions and layers share chunks of memory; a block
// that is given back is handed out again before more memory is mapped, so that mapped bytes never
// exceed the most that was in use at once by more than a chunk.
//
// Thread-safe: a snapshot may give its blocks back from any thread, at any time; the pool lives as
// long as the last block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace kvmesh::shard {

class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // Every block begins at a multiple of so many bytes.
  static constexpr size_t kAlignment = 64;
  // Chunks without a block in use are kept for the next session up to so many bytes, and one at
  // least; others go back to the system. A restore into memory of which the system has to make huge
  // pages first takes three times as long.
  static constexpr size_t kIdleBytesMax = size_t{256} << 20;

  // `block_bytes`: at least a pointer's.
  static std::shared_ptr<BlockPool> Make(size_t block_bytes);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // A block of zeros, `block_bytes` of them. Throws std::bad_alloc.
  std::shared_ptr<uint8_t> Allocate();

  size_t chunk_bytes() const { return chunk_bytes_; }
  size_t idle_chunks_max() const { return idle_chunks_max_; }
  size_t blocks_per_chunk() const { return chunk_bytes_ / stride_; }
  size_t mapped_bytes() const;

 private:
  // What a block that was given back holds: the next of its chunk.
  struct FreeBlock {
    FreeBlock* next;
  };
  struct Chunk {
    std::shared_ptr<uint8_t> memory;
    size_t fresh = 0;  // blocks from here on were never handed out: zeros
    size_t used = 0;
    FreeBlock* free = nullptr;
  };
  using Chunks = std::list<Chunk>;
  struct GiveBack;

  explicit BlockPool(size_t block_bytes);
  bool IsFull(const Chunk& chunk) const {
    return chunk.free == nullptr && chunk.fresh == blocks_per_chunk();
  }
  uint8_t* Take(Chunks::iterator* chunk);
  void Return(Chunks::iterator chunk, uint8_t* block) noexcept;

  const size_t block_bytes_;
  const size_t stride_;
  const size_t chunk_bytes_;
  const size_t idle_chunks_max_;
  mutable Mutex mutex_;
  Chunks open_ ABSL_GUARDED_BY(mutex_);  // with room; those in use before idle ones
  Chunks full_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;  // of open_, without a block in use: its last ones
};

}  // namespace kvmesh::shard
