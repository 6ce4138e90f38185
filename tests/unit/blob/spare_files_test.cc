// Files of removed slabs are written again, and nobody can tell.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <random>
#include <string>

#include "tests/testing/faulty_file_system.h"
#include "tests/testing/store_fixture.h"

namespace kvmesh::blob {
namespace {

using testing::DeleteSlab;
using testing::FaultyFileSystem;
using testing::GetSlab;
using testing::MakeSlabOfSize;
using testing::PutSlab;
using testing::RandomSlab;

constexpr uint64_t kMiB = 1 << 20;

class SpareFilesTest : public ::testing::Test {
 protected:
  SpareFilesTest() : folder_("ram_file") {}
  void SetUp() override { Open({.budget_bytes = 64 * kMiB}); }
  void Open(const StoreOptions& options) {
    store_.reset();
    auto store = testing::OpenStore("ram_file", folder_.path(), options, files_, events_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  struct stat StatOf(const std::string& file) const {
    struct stat info {};
    EXPECT_EQ(stat((folder_.path() + "/" + file).c_str(), &info), 0) << file;
    return info;
  }
  ino_t InodeOf(const RandomSlab& slab) const {
    const std::string name = NameOf(slab.meta).ToFileName();
    return StatOf("slabs/" + name.substr(0, 2) + "/" + name).st_ino;
  }
  uint64_t BytesOnMedium() const {
    uint64_t bytes = 0;
    for (const std::string& file : folder_.Files()) {
      bytes += static_cast<uint64_t>(StatOf(file).st_blocks) * 512;
    }
    return bytes;
  }

  testing::TempFolder folder_;
  FaultyFileSystem files_;
  testing::RecordedEvents events_;
  std::unique_ptr<SlabStore> store_;
};

TEST_F(SpareFilesTest, ARemovedSlabsFileHoldsTheNextSlabWhetherItIsSmallerOrLarger) {
  ino_t inode = 0;
  uint64_t seed = 1;
  for (const uint64_t payload : {2 * kMiB, 2 * kMiB, 3 * kMiB / 2, 5 * kMiB, 3 * kMiB}) {
    const RandomSlab slab = MakeSlabOfSize(seed++, payload);
    ASSERT_TRUE(PutSlab(*store_, slab).ok());
    EXPECT_TRUE(inode == 0 || InodeOf(slab) == inode);
    inode = InodeOf(slab);
    EXPECT_EQ(folder_.Files().size(), 1U);
    EXPECT_EQ(*GetSlab(*store_, NameOf(slab.meta)), slab.bytes);
    EXPECT_TRUE(*DeleteSlab(*store_, NameOf(slab.meta)));
    EXPECT_TRUE(absl::IsNotFound(GetSlab(*store_, NameOf(slab.meta)).status()));
  }
}

TEST_F(SpareFilesTest, ASmallSlabDoesNotCutALargeFile) {
  const RandomSlab large = MakeSlabOfSize(1, 8 * kMiB);
  ASSERT_TRUE(PutSlab(*store_, large).ok());
  ASSERT_TRUE(*DeleteSlab(*store_, NameOf(large.meta)));
  ASSERT_TRUE(PutSlab(*store_, MakeSlabOfSize(2, kMiB)).ok());
  EXPECT_EQ(folder_.Files().size(), 2U);
}

TEST_F(SpareFilesTest, AFileThatIsBeingReadIsNotWrittenAgain) {
  const RandomSlab slab = MakeSlabOfSize(1, 2 * kMiB);
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  auto reader = store_->BeginGet(NameOf(slab.meta), {});
  ASSERT_TRUE(reader.ok());
  bool removed = false;
  store_->Delete(NameOf(slab.meta), [&](const absl::StatusOr<bool>& done) { removed = *done; });
  const RandomSlab next = MakeSlabOfSize(2, 2 * kMiB);
  ASSERT_TRUE(PutSlab(*store_, next).ok());
  std::string bytes;
  while ((*reader)->next_bytes() > 0) {
    std::string chunk((*reader)->next_bytes(), '\0');
    ASSERT_TRUE((*reader)->ReadNext(absl::MakeSpan(chunk)).ok());
    bytes += chunk;
  }
  EXPECT_EQ(bytes, slab.bytes);
  EXPECT_FALSE(removed);
  reader->reset();
  EXPECT_TRUE(removed);
}

TEST_F(SpareFilesTest, SlabsAndSpareFilesNeverTakeMoreThanTheBudget) {
  constexpr uint64_t kBudget = 16 * kMiB;
  Open({.budget_bytes = kBudget});
  const uint64_t first = std::random_device()();
  std::printf("seed %lu\n", first);
  std::mt19937_64 random(first);
  std::vector<RandomSlab> slabs;
  for (uint64_t step = 1; step <= 60; ++step) {
    const RandomSlab slab = MakeSlabOfSize(step, (1 + random() % 20) * kMiB / 4);
    while (!PutSlab(*store_, slab).ok()) {
      ASSERT_FALSE(slabs.empty());
      const size_t victim = random() % slabs.size();
      ASSERT_TRUE(*DeleteSlab(*store_, NameOf(slabs[victim].meta)));
      slabs.erase(slabs.begin() + static_cast<std::ptrdiff_t>(victim));
      ASSERT_LE(BytesOnMedium(), kBudget);
    }
    slabs.push_back(slab);
    ASSERT_LE(BytesOnMedium(), kBudget);
  }
  for (const RandomSlab& slab : slabs) {
    EXPECT_EQ(*GetSlab(*store_, NameOf(slab.meta)), slab.bytes);
  }
}

TEST_F(SpareFilesTest, NoneOutlivesTheStoreNorTheTrimOfAStart) {
  std::vector<RandomSlab> slabs;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    slabs.push_back(MakeSlabOfSize(seed, 2 * kMiB));
    ASSERT_TRUE(PutSlab(*store_, slabs.back()).ok());
  }
  ASSERT_TRUE(*DeleteSlab(*store_, NameOf(slabs[0].meta)));
  EXPECT_EQ(folder_.Files().size(), 4U);
  store_.reset();
  EXPECT_EQ(folder_.Files().size(), 3U);
  Open({.budget_bytes = 64 * kMiB, .low_watermark = 1.0 / 16});
  EXPECT_EQ(store_->startup_report().removed.at("trimmed"), 2U);
  EXPECT_EQ(folder_.Files().size(), 1U);
}

TEST_F(SpareFilesTest, EachOperationOfADeleteAndOfThePutAfterItMayFail) {
  const auto round = [&](uint64_t seed) {
    RandomSlab old = MakeSlabOfSize(seed, 3 * kMiB);
    EXPECT_TRUE(PutSlab(*store_, old).ok());
    return old;
  };
  const auto refill = [&](const RandomSlab& old, const RandomSlab& next) {
    absl::Status status = DeleteSlab(*store_, NameOf(old.meta)).status();
    return status.ok() ? PutSlab(*store_, next).status() : status;
  };
  RandomSlab old = round(1000);
  files_.SetPlan(nullptr);
  ASSERT_TRUE(refill(old, MakeSlabOfSize(1001, 2 * kMiB)).ok());
  const size_t operations = files_.Operations().size();
  ASSERT_GT(operations, 8U);
  for (size_t number = 0; number < operations; number += 1 + number / 8) {
    old = round(2 * number + 1);
    const RandomSlab next = MakeSlabOfSize(2 * number + 2, 2 * kMiB);
    files_.SetPlan([n = size_t{0}, number](const std::string&, const std::string&) mutable {
      return n++ == number ? EIO : 0;
    });
    const absl::Status refilled = refill(old, next);
    files_.SetPlan(nullptr);
    if (!refilled.ok()) {
      EXPECT_TRUE(absl::IsUnavailable(refilled)) << refilled;
      EXPECT_TRUE(refill(old, next).ok());
    }
    EXPECT_EQ(*GetSlab(*store_, NameOf(next.meta)), next.bytes);
    EXPECT_EQ(store_->usage().in_flight_bytes, 0U);
    EXPECT_TRUE(DeleteSlab(*store_, NameOf(old.meta)).ok());
    EXPECT_TRUE(*DeleteSlab(*store_, NameOf(next.meta)));
  }
  EXPECT_EQ(store_->usage().slabs, 1U);
}

// Large pages are a hint: size, contents and errors are those of small ones.
TEST(LargePages, ARangeThatIsTakenInThemIsReadAndWrittenAsAnyOther) {
  const testing::TempFolder folder("ram_file");
  const std::unique_ptr<FileSystem> files = MakePosixFileSystem();
  auto file = files->Create(folder.path() + "/file");
  ASSERT_TRUE(file.ok()) << file.status();
  constexpr uint64_t kBytes = 5 * kMiB + 24;
  for (uint64_t at = 0; at < kBytes; at += 3 * kMiB) {
    const uint64_t step = std::min(3 * kMiB, kBytes - at);
    (*file)->PreferLargePages(at, step);
    EXPECT_LE(*(*file)->Size(), at + step);
    ASSERT_TRUE((*file)->Allocate(at, step).ok());
    EXPECT_EQ(*(*file)->Size(), at + step);
  }
  struct stat info {};
  ASSERT_EQ(stat((folder.path() + "/file").c_str(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_blocks) * 512, slab::AlignUp(kBytes));
  std::string bytes(kBytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 >> 5);
  ASSERT_TRUE(WriteAll(**file, 0, {bytes}).ok());
  std::string read(kBytes, '\0');
  ASSERT_TRUE(ReadAll(**file, 0, absl::MakeSpan(read)).ok());
  EXPECT_TRUE(read == bytes);
  (*file)->PreferLargePages(0, 0);
  (*file)->PreferLargePages(kBytes, 100);
  EXPECT_EQ(*(*file)->Size(), kBytes);
}

}  // namespace
}  // namespace kvmesh::blob
