#include "services/shard/grpc/checkpoint_queue.h"

#include <gtest/gtest.h>

#include "tests/rpc/shard/shard_fixture.h"

namespace kvmesh::shard {
namespace {

// What a test's work did, by number; work that was given up counts negative.
class Record {
 public:
  void Add(int number) {
    MutexLock lock(&mutex_);
    numbers_.push_back(number);
  }
  std::vector<int> Take() {
    MutexLock lock(&mutex_);
    return std::exchange(numbers_, {});
  }
  bool Has(size_t count) {
    MutexLock lock(&mutex_);
    return numbers_.size() >= count;
  }

 private:
  Mutex mutex_;
  std::vector<int> numbers_ ABSL_GUARDED_BY(mutex_);
};

TEST(CheckpointQueue, OneThreadRunsWorkInTheOrderItCame) {
  Record record;
  CheckpointQueue queue(1, 100);
  for (int i = 1; i <= 50; ++i) {
    ASSERT_TRUE(queue.Submit([&record, i](bool run) { record.Add(run ? i : -i); }));
  }
  ASSERT_TRUE(Eventually([&] { return record.Has(50); }));
  const std::vector<int> numbers = record.Take();
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  EXPECT_EQ(numbers.front(), 1);
}

TEST(CheckpointQueue, WorkRunsBesideWorkThatHangsAsLongAsThereAreThreads) {
  Gate gate;
  gate.Close();
  Record record;
  CheckpointQueue queue(2, 10);
  ASSERT_TRUE(queue.Submit([&](bool) { gate.Pass(); }));
  ASSERT_TRUE(Eventually([&] { return gate.held(); }));
  ASSERT_TRUE(queue.Submit([&](bool run) { record.Add(run ? 1 : -1); }));
  EXPECT_TRUE(Eventually([&] { return record.Has(1); }));
  gate.Open();
}

TEST(CheckpointQueue, AFullQueueRefusesAndAStoppedOneGivesUpWhatWaits) {
  Gate gate;
  gate.Close();
  Record record;
  CheckpointQueue queue(1, 2);
  ASSERT_TRUE(queue.Submit([&](bool) { gate.Pass(); }));
  ASSERT_TRUE(Eventually([&] { return gate.held(); }));
  EXPECT_TRUE(queue.Submit([&](bool run) { record.Add(run ? 1 : -1); }));
  EXPECT_TRUE(queue.Submit([&](bool run) { record.Add(run ? 2 : -2); }));
  EXPECT_FALSE(queue.Submit([&](bool run) { record.Add(run ? 3 : -3); }));
  std::thread stopper([&] { queue.Stop(); });
  EXPECT_TRUE(Eventually([&] { return record.Has(2); }));
  gate.Open();
  stopper.join();
  EXPECT_EQ(record.Take(), (std::vector<int>{-1, -2}));
  EXPECT_FALSE(queue.Submit([&](bool run) { record.Add(run ? 4 : -4); }));
  queue.Stop();
  EXPECT_TRUE(record.Take().empty());
}

}  // namespace
}  // namespace kvmesh::shard
