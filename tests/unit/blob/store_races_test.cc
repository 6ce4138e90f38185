// Several hands on one name, on every tier: writers of one key, deletes of what is being written or
// read, files that somebody else removed.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "common/base/error_info.h"
#include "tests/testing/store_fixture.h"

namespace kvmesh::blob {
namespace {

using testing::DeleteSlab;
using testing::GetSlab;
using testing::MakeRandomSlab;
using testing::MakeSlabOfSize;
using testing::PutSlab;
using testing::RandomSlab;

class StoreRaces : public ::testing::TestWithParam<std::string> {
 protected:
  StoreRaces() : folder_(GetParam()) {}

  void SetUp() override {
    auto store =
        testing::OpenStore(GetParam(), folder_.path(),
                           {.budget_bytes = 256 << 20, .transfers_max = 64}, *files_, events_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  bool has_files() const { return GetParam() != "ram"; }

  const std::unique_ptr<FileSystem> files_ = MakePosixFileSystem();
  testing::TempFolder folder_;
  testing::RecordedEvents events_;
  std::unique_ptr<SlabStore> store_;
};

TEST_P(StoreRaces, WritersOfOneKeyAtOnceAllSucceedAndEachIsWhole) {
  const RandomSlab slab = MakeRandomSlab({.token_count = 200});
  std::vector<RandomSlab> writes;
  for (char write = 'a'; write < 'i'; ++write) {
    const auto write_id = WriteId::FromBytes(std::string(16, write), "write_id");
    writes.push_back(testing::WithWriteId(slab, *write_id));
  }
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  threads.reserve(writes.size());
  for (const RandomSlab& write : writes) {
    threads.emplace_back([&] { failures += !PutSlab(*store_, write, 4096).ok(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  for (const RandomSlab& write : writes) {
    EXPECT_EQ(*GetSlab(*store_, NameOf(write.meta)), write.bytes);
  }
  EXPECT_EQ(store_->usage().slabs, writes.size());
}

TEST_P(StoreRaces, WritersOfOneNameAtOnceLeaveItOnceAndWhole) {
  const RandomSlab slab = MakeRandomSlab({.token_count = 200});
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  std::atomic<int> refused{0};
  threads.reserve(8);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto put = PutSlab(*store_, slab, 4096);
      done += put.ok();
      refused += ReasonOf(put.status()) == "BEING_WRITTEN";
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(done, 1);
  EXPECT_EQ(done + refused, 8);
  EXPECT_EQ(*GetSlab(*store_, NameOf(slab.meta)), slab.bytes);
  EXPECT_EQ(store_->usage().slabs, 1U);
  if (has_files()) {
    EXPECT_EQ(folder_.Files().size(), 1U);
  }
}

TEST_P(StoreRaces, ASlabThatGoesBetweenLookupAndReadIsAMissAndItsDeleteIsIdempotent) {
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  ASSERT_TRUE(store_->Stat(NameOf(slab.meta)).ok());
  EXPECT_TRUE(*DeleteSlab(*store_, NameOf(slab.meta)));
  EXPECT_EQ(store_->BeginGet(NameOf(slab.meta), {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(*DeleteSlab(*store_, NameOf(slab.meta)));
  EXPECT_EQ(store_->transfers(), 0U);
}

TEST_P(StoreRaces, AFileRemovedByHandIsForgottenByItsDelete) {
  if (!has_files()) return;
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  ASSERT_EQ(folder_.Files().size(), 1U);
  std::filesystem::remove(folder_.path() + "/" + folder_.Files()[0]);
  EXPECT_TRUE(*DeleteSlab(*store_, NameOf(slab.meta)));
  EXPECT_EQ(store_->usage().occupied(), 0U);
  EXPECT_TRUE(PutSlab(*store_, slab).ok());
}

TEST_P(StoreRaces, ADeleteOfWhatIsBeingPutEndsThePutAndAnswersThen) {
  const RandomSlab slab = MakeSlabOfSize(1, 1 << 20);
  auto begun = store_->BeginPut(testing::HeaderOf(slab.meta));
  ASSERT_TRUE(begun.ok()) << begun.status();
  ASSERT_TRUE(begun->put->Append({slab.bytes.substr(0, 1 << 19)}).ok());
  int answers = 0;
  const auto count = [&](const absl::StatusOr<bool>& removed) {
    answers += removed.ok() && !*removed;
  };
  store_->Delete(NameOf(slab.meta), count);
  store_->Delete(NameOf(slab.meta), count);
  EXPECT_EQ(answers, 0);
  EXPECT_EQ(ReasonOf(begun->put->CheckWanted()), "DELETING");
  EXPECT_EQ(ReasonOf(PutSlab(*store_, slab).status()), "DELETING");
  const absl::Status appended = begun->put->Append({slab.bytes.substr(1 << 19)});
  EXPECT_EQ(appended.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(appended), "DELETING");
  begun->put.reset();
  EXPECT_EQ(answers, 2);
  EXPECT_TRUE(events_.Take().empty());
  EXPECT_EQ(store_->usage().occupied(), 0U);
  EXPECT_TRUE(PutSlab(*store_, slab).ok());
}

TEST_P(StoreRaces, DeletesAndPutsOfOneNameAtOnceAllEnd) {
  const RandomSlab slab = MakeRandomSlab({.token_count = 200});
  const int rounds = 30;
  std::atomic<int> answers{0};
  std::thread deleter([&] {
    for (int i = 0; i < rounds; ++i) {
      store_->Delete(NameOf(slab.meta),
                     [&](const absl::StatusOr<bool>& removed) { answers += removed.ok(); });
    }
  });
  int surprises = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto put = PutSlab(*store_, slab, 4096);
    surprises += !put.ok() && ReasonOf(put.status()) != "DELETING";
  }
  deleter.join();
  EXPECT_EQ(surprises, 0);
  EXPECT_EQ(answers, rounds);
  ASSERT_TRUE(DeleteSlab(*store_, NameOf(slab.meta)).ok());
  EXPECT_EQ(store_->usage().occupied(), 0U);
  EXPECT_TRUE(PutSlab(*store_, slab).ok());
  EXPECT_EQ(*GetSlab(*store_, NameOf(slab.meta)), slab.bytes);
}

INSTANTIATE_TEST_SUITE_P(Tiers, StoreRaces, ::testing::Values("ram", "ram_file", "disk"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvmesh::blob
