// Every operation of the file layer fails once, in every way: that call fails with a clear status,
// nothing half-visible or temporary stays, and the next call works.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/error_info.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/store_fixture.h"

namespace kvmesh::blob {
namespace {

using testing::FaultyFileSystem;
using testing::GetSlab;
using testing::MakeRandomSlab;
using testing::MakeSlabOfSize;
using testing::PutSlab;
using testing::RandomSlab;

class StoreFaults : public ::testing::TestWithParam<std::string> {
 protected:
  StoreFaults() : folder_(GetParam()) {}
  void SetUp() override { Open(); }
  void Open() {
    store_.reset();
    auto store =
        testing::OpenStore(GetParam(), folder_.path(), {.budget_bytes = 64 << 20}, files_, events_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  // Fails the operation of that number, once.
  void FailOnce(size_t number, int error) {
    files_.SetPlan([n = size_t{0}, number, error](const std::string&, const std::string&) mutable {
      return n++ == number ? error : 0;
    });
  }

  FaultyFileSystem files_;
  testing::TempFolder folder_;
  testing::RecordedEvents events_;
  std::unique_ptr<SlabStore> store_;
};

bool IsCodeOf(int error, absl::StatusCode code) {
  if (error == EIO) return code == absl::StatusCode::kUnavailable;
  return code == absl::StatusCode::kResourceExhausted;
}

TEST_P(StoreFaults, EachOperationOfAPutMayFail) {
  files_.SetPlan(nullptr);
  ASSERT_TRUE(PutSlab(*store_, MakeSlabOfSize(500, 128 << 10)).ok());
  const std::vector<std::string> operations = files_.Operations();
  ASSERT_GE(operations.size(), 8U);
  uint64_t seed = 1;
  for (int error : {ENOSPC, EIO, EMFILE}) {
    for (size_t number = 0; number < operations.size(); ++number) {
      SCOPED_TRACE(operations[number] + " " + std::to_string(error));
      const RandomSlab slab = MakeSlabOfSize(seed++, 128 << 10);
      const size_t files_before = folder_.Files().size();
      const uint64_t used_before = store_->usage().used_bytes;
      FailOnce(number, error);
      const auto put = PutSlab(*store_, slab);
      files_.SetPlan(nullptr);
      EXPECT_EQ(store_->usage().in_flight_bytes, 0U);
      if (put.ok()) {
        // Only the temporary name's removal may fail unseen; it is tried again.
        EXPECT_EQ(operations[number], "unlink");
        EXPECT_EQ(folder_.Files().size(), files_before + 1);
      } else {
        EXPECT_TRUE(IsCodeOf(error, put.status().code())) << put.status();
        EXPECT_EQ(folder_.Files().size(), files_before);
        EXPECT_EQ(store_->usage().used_bytes, used_before);
        EXPECT_FALSE(store_->Stat(NameOf(slab.meta)).ok());
        EXPECT_TRUE(PutSlab(*store_, slab).ok());
      }
      EXPECT_EQ(*GetSlab(*store_, NameOf(slab.meta)), slab.bytes);
    }
  }
}

TEST_P(StoreFaults, EachOperationOfAGetMayFail) {
  const RandomSlab slab = MakeSlabOfSize(1, 1 << 20);
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  files_.SetPlan(nullptr);
  ASSERT_TRUE(GetSlab(*store_, NameOf(slab.meta)).ok());
  const size_t operations = files_.Operations().size();
  for (int error : {EIO, EMFILE}) {
    for (size_t number = 0; number < operations; ++number) {
      FailOnce(number, error);
      const auto got = GetSlab(*store_, NameOf(slab.meta));
      EXPECT_TRUE(IsCodeOf(error, got.status().code())) << got.status();
      files_.SetPlan(nullptr);
      EXPECT_EQ(*GetSlab(*store_, NameOf(slab.meta)), slab.bytes);
    }
  }
  EXPECT_EQ(store_->transfers(), 0U);
}

TEST_P(StoreFaults, AReadTouchesItsOwnFileAlone) {
  std::vector<std::string> of_one;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const RandomSlab slab = MakeSlabOfSize(seed, 4096);
    ASSERT_TRUE(PutSlab(*store_, slab).ok());
    files_.SetPlan(nullptr);
    ASSERT_TRUE(store_->BeginGet(NameOf(slab.meta), {}).ok());
    if (seed == 1) of_one = files_.Operations();
    EXPECT_EQ(files_.Operations(), of_one);
  }
  EXPECT_EQ(std::count(of_one.begin(), of_one.end(), "open"), 1);
  EXPECT_EQ(std::count(of_one.begin(), of_one.end(), "list"), 0);
}

TEST_P(StoreFaults, FilesAreSpreadOverFoldersByTheFirstTwoDigitsOfTheKey) {
  const RandomSlab slab = MakeSlabOfSize(1, 4096);
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  const std::string name = NameOf(slab.meta).ToFileName();
  EXPECT_EQ(folder_.Files(), std::vector<std::string>{"slabs/" + name.substr(0, 2) + "/" + name});
}

TEST_P(StoreFaults, AFailedDeleteLeavesTheSlab) {
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  FailOnce(0, EIO);
  EXPECT_EQ(testing::DeleteSlab(*store_, NameOf(slab.meta)).status().code(),
            absl::StatusCode::kUnavailable);
  files_.SetPlan(nullptr);
  EXPECT_TRUE(GetSlab(*store_, NameOf(slab.meta)).ok());
  EXPECT_TRUE(*testing::DeleteSlab(*store_, NameOf(slab.meta)));
}

TEST_P(StoreFaults, ShortWritesAndReadsAreContinued) {
  files_.SetTransferMax(1000);
  const RandomSlab slab = MakeSlabOfSize(1, 256 << 10);
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  EXPECT_EQ(*GetSlab(*store_, NameOf(slab.meta)), slab.bytes);
}

TEST_P(StoreFaults, AnUnreadableSlabIsNotServedAfterAStart) {
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  files_.SetPlan([](const std::string& operation, const std::string&) {
    return operation == "read" ? EIO : 0;
  });
  ASSERT_NO_FATAL_FAILURE(Open());
  EXPECT_EQ(store_->startup_report().quarantined.at("unreadable"), 1U);
}

INSTANTIATE_TEST_SUITE_P(Tiers, StoreFaults, ::testing::Values("ram_file", "disk"),
                         [](const auto& info) { return info.param; });

// A tmpfs of 2 MiB and 400 files; needs the right to mount.
class SmallMedium : public ::testing::Test {
 protected:
  void SetUp() override {
    if (mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, "size=2m,nr_inodes=400") != 0) {
      GTEST_SKIP() << "cannot mount a tmpfs here: " << strerror(errno);
    }
    mounted_ = true;
  }
  void TearDown() override {
    store_.reset();
    if (mounted_) umount(folder_.path().c_str());
  }
  void Open(const std::string& tier) {
    auto store =
        testing::OpenStore(tier, folder_.path(), {.budget_bytes = 64 << 20}, *files_, events_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  const std::unique_ptr<FileSystem> files_ = MakePosixFileSystem();
  testing::TempFolder folder_;
  testing::RecordedEvents events_;
  std::unique_ptr<SlabStore> store_;
  bool mounted_ = false;
};

TEST_F(SmallMedium, AFullMediumIsAnErrorBeforeTheFirstByteAndTheNextCallWorks) {
  ASSERT_NO_FATAL_FAILURE(Open("ram_file"));
  const RandomSlab large = MakeSlabOfSize(1, 3 << 20);
  for (int round = 0; round < 3; ++round) {
    const auto begun = store_->BeginPut(testing::HeaderOf(large.meta));
    EXPECT_EQ(begun.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ReasonOf(begun.status()), "MEDIUM_FULL");
  }
  EXPECT_EQ(store_->usage().occupied(), 0U);
  EXPECT_TRUE(folder_.Files().empty());
  const RandomSlab small = MakeSlabOfSize(2, 512 << 10);
  ASSERT_TRUE(PutSlab(*store_, small).ok());
  EXPECT_EQ(*GetSlab(*store_, NameOf(small.meta)), small.bytes);
}

TEST_F(SmallMedium, RoomThatAnOpenPutHasNotTakenYetIsNotGivenToAnother) {
  ASSERT_NO_FATAL_FAILURE(Open("ram_file"));
  const RandomSlab first = MakeSlabOfSize(1, 1 << 20);
  const RandomSlab second = MakeSlabOfSize(2, 1 << 20);
  auto begun = store_->BeginPut(testing::HeaderOf(first.meta));
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(ReasonOf(store_->BeginPut(testing::HeaderOf(second.meta)).status()), "MEDIUM_FULL");
  ASSERT_TRUE(begun->put->Append({first.bytes}).ok());
  EXPECT_TRUE(begun->put->Finish().ok());
  ASSERT_TRUE(testing::DeleteSlab(*store_, NameOf(first.meta)).ok());
  begun->put.reset();
  EXPECT_TRUE(PutSlab(*store_, second).ok());
}

TEST_F(SmallMedium, RoomThatSomebodyElseTakesMeanwhileFailsThatPutAlone) {
  ASSERT_NO_FATAL_FAILURE(Open("ram_file"));
  const RandomSlab slab = MakeSlabOfSize(1, 1 << 20);
  auto begun = store_->BeginPut(testing::HeaderOf(slab.meta));
  ASSERT_TRUE(begun.ok()) << begun.status();
  const std::string foreign = folder_.path() + "/foreign";
  std::ofstream(foreign) << std::string(1500 << 10, 'x');
  const absl::Status appended = begun->put->Append({slab.bytes});
  EXPECT_EQ(appended.code(), absl::StatusCode::kResourceExhausted) << appended;
  EXPECT_EQ(ReasonOf(appended), "MEDIUM_FULL");
  begun->put.reset();
  EXPECT_EQ(store_->usage().occupied(), 0U);
  EXPECT_EQ(folder_.Files(), std::vector<std::string>{"foreign"});
  std::filesystem::remove(foreign);
  EXPECT_TRUE(PutSlab(*store_, slab).ok());
}

TEST_F(SmallMedium, FilesKeptToBeWrittenAgainGoWhenTheMediumIsFull) {
  ASSERT_NO_FATAL_FAILURE(Open("ram_file"));
  const RandomSlab first = MakeSlabOfSize(1, 1 << 20);
  ASSERT_TRUE(PutSlab(*store_, first).ok());
  ASSERT_TRUE(testing::DeleteSlab(*store_, NameOf(first.meta)).ok());
  EXPECT_EQ(folder_.Files().size(), 1U);
  std::ofstream(folder_.path() + "/foreign") << std::string(800 << 10, 'x');
  const RandomSlab small = MakeSlabOfSize(2, 400 << 10);
  ASSERT_TRUE(PutSlab(*store_, small).ok());
  EXPECT_EQ(*GetSlab(*store_, NameOf(small.meta)), small.bytes);
  EXPECT_EQ(folder_.Files().size(), 2U);
}

TEST_F(SmallMedium, LargePagesThatDoNotFitAreNoError) {
  ASSERT_NO_FATAL_FAILURE(Open("ram_file"));
  auto file = files_->Create(folder_.path() + "/file");
  ASSERT_TRUE(file.ok());
  (*file)->PreferLargePages(0, 4 << 20);
  const absl::Status full = (*file)->Allocate(0, 4 << 20);
  EXPECT_EQ(ReasonOf(full), "MEDIUM_FULL") << full;
  EXPECT_TRUE((*file)->Truncate(0).ok());
  EXPECT_TRUE((*file)->Allocate(0, 1 << 20).ok());
}

// The tier's own folders take 260 of the 400 files.
TEST_F(SmallMedium, TheLastFilesOfTheMediumAreNotTaken) {
  ASSERT_NO_FATAL_FAILURE(Open("disk"));
  absl::Status refused;
  std::vector<SlabName> names;
  for (uint64_t seed = 1; refused.ok() && seed < 400; ++seed) {
    const RandomSlab slab = MakeSlabOfSize(seed, 4096);
    refused = PutSlab(*store_, slab).status();
    if (refused.ok()) names.push_back(NameOf(slab.meta));
  }
  EXPECT_EQ(ReasonOf(refused), "MEDIUM_FULL") << refused;
  const auto space = files_->SpaceOf(folder_.path());
  ASSERT_TRUE(space.ok());
  EXPECT_EQ(space->files, space->files_max / 100);
  ASSERT_TRUE(testing::DeleteSlab(*store_, names.front()).ok());
  EXPECT_TRUE(PutSlab(*store_, MakeSlabOfSize(1000, 4096)).ok());
}

}  // namespace
}  // namespace kvmesh::blob
