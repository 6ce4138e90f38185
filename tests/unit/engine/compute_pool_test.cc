#include "services/shard/engine/compute_pool.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvmesh::shard {
namespace {

void Nothing() {}

TEST(ComputePool, EveryTaskRunsOnceWhateverTheNumberOfThreads) {
  for (const uint32_t threads : {1u, 2u, 3u, 7u}) {
    ComputePool pool(threads, Nothing);
    EXPECT_EQ(pool.threads(), threads);
    for (const size_t count : {0u, 1u, 2u, 100u}) {
      std::vector<std::atomic<int>> runs(count);
      pool.Run(count, [&](size_t i, uint32_t worker) {
        EXPECT_LT(worker, threads);
        runs[i].fetch_add(1);
      });
      for (const auto& run : runs) EXPECT_EQ(run.load(), 1);
    }
  }
}

TEST(ComputePool, WhatTasksWroteIsSeenAfterRun) {
  ComputePool pool(3, Nothing);
  std::vector<int> values(64);
  for (int round = 1; round <= 2000; ++round) {
    pool.Run(values.size(), [&](size_t i, uint32_t) { values[i] += 1; });
    ASSERT_THAT(values, ::testing::Each(round));
  }
}

TEST(ComputePool, NoTwoTasksRunAsTheSameWorkerAtOnce) {
  ComputePool pool(4, Nothing);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> clashes = 0;
  for (int round = 0; round < 200; ++round) {
    pool.Run(50, [&](size_t, uint32_t worker) {
      if (inside[worker].fetch_add(1) != 0) clashes.fetch_add(1);
      inside[worker].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

TEST(ComputePool, WhatIsLeftOfAThreadThatIsHeldUpIsDoneByOthers) {
  ComputePool pool(2, Nothing);
  constexpr size_t kCount = 40;
  for (int round = 0; round < 20; ++round) {
    std::atomic<size_t> done = 0;
    std::atomic<bool> timed_out = false;
    pool.Run(kCount, [&](size_t i, uint32_t) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (i == 0 && done.load() < kCount - 1 && !timed_out.load()) {
        timed_out.store(std::chrono::steady_clock::now() > deadline);
        std::this_thread::yield();
      }
      done.fetch_add(1);
    });
    EXPECT_EQ(done.load(), kCount);
    ASSERT_FALSE(timed_out.load()) << "tasks of the thread that task 0 holds up were left to it";
  }
}

TEST(ComputePool, ThreadsThatSleepWakeForTheNextRun) {
  ComputePool pool(2, Nothing);
  // Two tasks that wait for one another need two threads.
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> arrived = 0;
    pool.Run(2, [&](size_t, uint32_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });
    // Longer than the pool spins.
    ComputePool other(3, Nothing);
    other.Run(2000, [](size_t, uint32_t) { std::this_thread::yield(); });
  }
}

TEST(ComputePool, AnExceptionOfATaskReachesTheCallerAndThePoolGoesOn) {
  ComputePool pool(3, Nothing);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.Run(100,
                          [](size_t i, uint32_t) {
                            if (i == 40) throw std::runtime_error("task 40");
                          }),
                 std::runtime_error);
    std::atomic<int> runs = 0;
    pool.Run(10, [&](size_t, uint32_t) { runs.fetch_add(1); });
    EXPECT_EQ(runs.load(), 10);
  }
}

TEST(ComputePool, EachFurtherThreadIsPreparedOnce) {
  std::atomic<int> prepared = 0;
  {
    ComputePool pool(4, [&] { prepared.fetch_add(1); });
  }
  EXPECT_EQ(prepared.load(), 3);
}

}  // namespace
}  // namespace kvmesh::shard
