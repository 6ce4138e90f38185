// Blocks of keys and values from huge pages: zeros, used again, bounded, from any thread.
#include "services/shard/engine/block_pool.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace kvmesh::shard {
namespace {

using Blocks = std::vector<std::shared_ptr<uint8_t>>;

constexpr size_t kBytes = 48 << 10;

bool IsZero(const uint8_t* block, size_t bytes) {
  return std::all_of(block, block + bytes, [](uint8_t byte) { return byte == 0; });
}

size_t ChunksFor(const BlockPool& pool, size_t blocks) {
  return (blocks + pool.blocks_per_chunk() - 1) / pool.blocks_per_chunk();
}

TEST(BlockPool, BlocksAreAlignedZerosThatDoNotOverlap) {
  for (const size_t bytes : {size_t{8}, size_t{100}, size_t{6144}, kBytes, (size_t{3} << 20) + 8}) {
    const auto pool = BlockPool::Make(bytes);
    Blocks blocks;
    for (size_t i = 0; i < 20; ++i) {
      blocks.push_back(pool->Allocate());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().get()) % BlockPool::kAlignment, 0u);
      EXPECT_TRUE(IsZero(blocks.back().get(), bytes));
      std::memset(blocks.back().get(), static_cast<int>(i + 1), bytes);
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      const uint8_t* begin = blocks[i].get();
      EXPECT_EQ(std::count(begin, begin + bytes, static_cast<uint8_t>(i + 1)),
                static_cast<ptrdiff_t>(bytes));
    }
  }
}

TEST(BlockPool, AnEndOfAChunkWastesAtMostASixteenth) {
  for (const size_t bytes : {size_t{8192}, kBytes, size_t{256} << 10, (size_t{1} << 20) + 64}) {
    const auto pool = BlockPool::Make(bytes);
    EXPECT_GE(pool->blocks_per_chunk() * bytes, pool->chunk_bytes() / 16 * 15) << bytes;
  }
}

TEST(BlockPool, ABlockGivenBackIsHandedOutAgainAsZeros) {
  const auto pool = BlockPool::Make(kBytes);
  std::shared_ptr<uint8_t> block = pool->Allocate();
  const uint8_t* first = block.get();
  std::memset(block.get(), 0xff, kBytes);
  block.reset();
  block = pool->Allocate();
  EXPECT_EQ(block.get(), first);
  EXPECT_TRUE(IsZero(block.get(), kBytes));
}

TEST(BlockPool, MapsNoMoreThanWasInUseAtOnce) {
  const auto pool = BlockPool::Make(kBytes);
  std::mt19937 random(7);
  Blocks blocks;
  size_t most = 0;
  for (int step = 0; step < 5000; ++step) {
    // Grows, shrinks, grows ...
    if (random() % 100 < (step / 500 % 2 == 0 ? 70u : 35u)) {
      blocks.push_back(pool->Allocate());
      most = std::max(most, blocks.size());
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      blocks.pop_back();
    }
    ASSERT_GE(pool->mapped_bytes(), ChunksFor(*pool, blocks.size()) * pool->chunk_bytes());
    ASSERT_LE(pool->mapped_bytes(), ChunksFor(*pool, most) * pool->chunk_bytes());
  }
  std::set<uint8_t*> distinct;
  for (const auto& block : blocks) distinct.insert(block.get());
  EXPECT_EQ(distinct.size(), blocks.size());
}

TEST(BlockPool, IdleChunksAreKeptUpToALimit) {
  const auto pool = BlockPool::Make(kBytes);
  for (int round = 0; round < 2; ++round) {
    Blocks blocks;
    const size_t count = pool->blocks_per_chunk() * (pool->idle_chunks_max() + 3);
    for (size_t i = 0; i < count; ++i) blocks.push_back(pool->Allocate());
    EXPECT_EQ(pool->mapped_bytes(), (pool->idle_chunks_max() + 3) * pool->chunk_bytes());
    blocks.clear();
    EXPECT_EQ(pool->mapped_bytes(), pool->idle_chunks_max() * pool->chunk_bytes());
    EXPECT_LE(pool->mapped_bytes(), BlockPool::kIdleBytesMax);
  }
}

TEST(BlockPool, BlocksOutliveTheirOwner) {
  auto pool = BlockPool::Make(kBytes);
  std::shared_ptr<uint8_t> block = pool->Allocate();
  pool.reset();
  std::memset(block.get(), 1, kBytes);
  EXPECT_EQ(block.get()[kBytes - 1], 1);
}

TEST(BlockPool, BlocksMayBeGivenBackByOtherThreads) {
  const auto pool = BlockPool::Make(kBytes);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    Blocks taken;
    for (int j = 0; j < 50; ++j) taken.push_back(pool->Allocate());
    threads.emplace_back([&pool, taken = std::move(taken)]() mutable {
      while (!taken.empty()) {
        taken.pop_back();
        const std::shared_ptr<uint8_t> other = pool->Allocate();
        EXPECT_TRUE(IsZero(other.get(), kBytes));
        other.get()[0] = 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(pool->mapped_bytes(), ChunksFor(*pool, 204) * pool->chunk_bytes());
}

}  // namespace
}  // namespace kvmesh::shard
