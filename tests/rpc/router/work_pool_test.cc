#include "services/router/grpc/work_pool.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace kvmesh::router {
namespace {

constexpr size_t kShort = 10;
constexpr size_t kLong = 11;
constexpr absl::Duration kPatience = absl::Seconds(20);

// Work that waits for its release, and what has run so far.
class Trace {
 public:
  // Runs until Release.
  std::function<void()> Held() {
    return [this] {
      MutexLock lock(&mutex_);
      ++holding_;
      changed_.NotifyAll();
      while (held_) changed_.WaitFor(&mutex_, kPatience);
    };
  }
  std::function<void()> Note(int number) {
    return [this, number] {
      MutexLock lock(&mutex_);
      done_.push_back(number);
      changed_.NotifyAll();
    };
  }
  void Release() {
    MutexLock lock(&mutex_);
    held_ = false;
    changed_.NotifyAll();
  }
  bool WaitForHolding(int count) {
    return Wait([this, count] { return holding_ == count; });
  }
  bool WaitForDone(size_t count) {
    return Wait([this, count] { return done_.size() == count; });
  }
  std::vector<int> done() {
    MutexLock lock(&mutex_);
    return done_;
  }

 private:
  template <typename Condition>
  bool Wait(Condition condition) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const MonotonicClock clock;
    const MonoTime end = clock.Now() + kPatience;
    MutexLock lock(&mutex_);
    while (!condition() && clock.Now() < end) changed_.WaitFor(&mutex_, absl::Milliseconds(100));
    return condition();
  }

  Mutex mutex_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mutex_) = true;
  int holding_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int> done_ ABSL_GUARDED_BY(mutex_);
};

TEST(WorkPool, ShortWorkGetsOnWhileLongWorkTakesItsTime) {
  Trace trace;
  WorkPool pool({.long_bytes = kShort});
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(pool.Submit(kLong, trace.Held()));
  ASSERT_TRUE(trace.WaitForHolding(1));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pool.Submit(kShort, trace.Note(i)));
  EXPECT_TRUE(trace.WaitForDone(3));
  EXPECT_EQ(trace.done(), (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(trace.WaitForHolding(1));
  trace.Release();
}

TEST(WorkPool, LongWorkWaitsForNoShortWork) {
  Trace first;
  Trace second;
  WorkPool pool({.long_bytes = kShort});
  ASSERT_TRUE(pool.Submit(kLong, second.Held()));  // in the second thread
  ASSERT_TRUE(second.WaitForHolding(1));
  ASSERT_TRUE(pool.Submit(kShort, first.Held()));  // so this is in the first one
  ASSERT_TRUE(first.WaitForHolding(1));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pool.Submit(kShort, second.Note(i)));
  ASSERT_TRUE(pool.Submit(kLong, second.Note(100)));
  second.Release();
  ASSERT_TRUE(second.WaitForDone(4));
  EXPECT_EQ(second.done(), (std::vector<int>{100, 0, 1, 2}));
  first.Release();
}

TEST(WorkPool, EachQueueIsBounded) {
  Trace trace;
  WorkPool pool({.short_queue_max = 2, .long_queue_max = 1, .long_bytes = kShort});
  ASSERT_TRUE(pool.Submit(kLong, trace.Held()));
  ASSERT_TRUE(trace.WaitForHolding(1));
  ASSERT_TRUE(pool.Submit(kShort, trace.Held()));
  ASSERT_TRUE(trace.WaitForHolding(2));
  EXPECT_TRUE(pool.Submit(kLong, trace.Note(1)));
  EXPECT_FALSE(pool.Submit(kLong, trace.Note(2)));
  EXPECT_TRUE(pool.Submit(kShort, trace.Note(3)));
  EXPECT_TRUE(pool.Submit(kShort, trace.Note(4)));
  EXPECT_FALSE(pool.Submit(kShort, trace.Note(5)));
  trace.Release();
  EXPECT_TRUE(trace.WaitForDone(3));
}

TEST(WorkPool, WhatIsQueuedRunsBeforeItEnds) {
  Trace trace;
  {
    WorkPool pool({.long_bytes = kShort});
    for (int i = 0; i < 20; ++i)
      ASSERT_TRUE(pool.Submit(i % 2 == 0 ? kShort : kLong, trace.Note(i)));
  }
  EXPECT_EQ(trace.done().size(), 20u);
}

}  // namespace
}  // namespace kvmesh::router
