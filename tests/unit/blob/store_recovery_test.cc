// What a file tier makes of the files it finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "common/base/error_info.h"
#include "tests/testing/store_fixture.h"

namespace kvmesh::blob {
namespace {

using testing::GetSlab;
using testing::MakeRandomSlab;
using testing::MakeSlabOfSize;
using testing::PutSlab;
using testing::RandomSlab;

class StoreRecovery : public ::testing::TestWithParam<std::string> {
 protected:
  StoreRecovery() : folder_(GetParam()) {}
  std::unique_ptr<SlabStore> Open(StoreOptions options = {.budget_bytes = 64 << 20}) {
    auto store = testing::OpenStore(GetParam(), folder_.path(), options, *files_, events_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  std::string PathOf(const RandomSlab& slab) const {
    const std::string name = NameOf(slab.meta).ToFileName();
    return folder_.path() + "/slabs/" + name.substr(0, 2) + "/" + name;
  }
  static void Overwrite(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::unique_ptr<FileSystem> files_ = MakePosixFileSystem();
  testing::TempFolder folder_;
  testing::RecordedEvents events_;
};

TEST_P(StoreRecovery, SlabsOutliveTheProcess) {
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(PutSlab(*Open(), slab).ok());
  const auto store = Open();
  EXPECT_EQ(store->startup_report().kept, 1U);
  EXPECT_EQ(*GetSlab(*store, NameOf(slab.meta)), slab.bytes);
  EXPECT_EQ(store->usage().used_bytes, ChargedBytes(slab.bytes.size()));
}

TEST_P(StoreRecovery, TemporaryFilesGoAndForeignOnesStay) {
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(PutSlab(*Open(), slab).ok());
  const std::string folder = std::filesystem::path(PathOf(slab)).parent_path();
  Overwrite(folder + "/.tmp-0", slab.bytes);
  // Killed between link and unlink: two names of one file.
  std::filesystem::create_hard_link(PathOf(slab), folder + "/.tmp-1");
  Overwrite(folder + "/README", "not ours");
  std::filesystem::create_directory(folder + "/lost+found");
  const auto store = Open();
  EXPECT_EQ(store->startup_report().removed.at("temporary"), 2U);
  EXPECT_EQ(store->startup_report().left_alone.at("foreign_name"), 2U);
  EXPECT_EQ(store->startup_report().kept, 1U);
  EXPECT_EQ(*GetSlab(*store, NameOf(slab.meta)), slab.bytes);
  EXPECT_TRUE(std::filesystem::exists(folder + "/README"));
}

TEST_P(StoreRecovery, BadFilesAreQuarantinedWithTheReason) {
  const RandomSlab good = MakeRandomSlab({.seed = 1});
  std::vector<RandomSlab> slabs;
  for (uint64_t seed = 2; seed <= 7; ++seed) slabs.push_back(MakeRandomSlab({.seed = seed}));
  {
    const auto store = Open();
    ASSERT_TRUE(PutSlab(*store, good).ok());
    for (const RandomSlab& slab : slabs) ASSERT_TRUE(PutSlab(*store, slab).ok());
  }
  Overwrite(PathOf(slabs[0]), "");
  Overwrite(PathOf(slabs[1]), slabs[1].bytes.substr(0, slab::kHeaderBytes));
  Overwrite(PathOf(slabs[2]), slabs[2].bytes.substr(0, slabs[2].bytes.size() - 1));
  std::string old = slabs[3].bytes;
  old[3] = 1;
  Overwrite(PathOf(slabs[3]), old);
  std::string flipped = slabs[4].bytes;
  flipped[100] ^= 1;
  Overwrite(PathOf(slabs[4]), flipped);
  Overwrite(PathOf(slabs[5]), good.bytes);  // sound, under another slab's name
  const auto store = Open();
  const std::map<std::string, uint64_t> expected = {{std::string(slab::defect::kTruncated), 3},
                                                    {std::string(slab::defect::kVersion), 1},
                                                    {std::string(slab::defect::kCorrupt), 2}};
  EXPECT_EQ(store->startup_report().quarantined, expected);
  EXPECT_EQ(store->startup_report().kept, 1U);
  EXPECT_EQ(store->usage().slabs, 1U);
  EXPECT_GT(store->usage().quarantined_bytes, 0U);
  // A bad one no longer blocks its name.
  EXPECT_TRUE(PutSlab(*store, slabs[0]).ok());
}

TEST_P(StoreRecovery, TheQuarantineIsBoundedInFilesAndBytes) {
  std::vector<RandomSlab> slabs;
  {
    const auto store = Open();
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      slabs.push_back(MakeRandomSlab({.seed = seed}));
      ASSERT_TRUE(PutSlab(*store, slabs.back()).ok());
    }
  }
  for (RandomSlab& slab : slabs) Overwrite(PathOf(slab), slab.bytes.substr(1));
  const auto store = Open();
  EXPECT_EQ(store->startup_report().kept, 0U);
  EXPECT_EQ(folder_.Files().size(), 16U);
  EXPECT_LE(store->usage().quarantined_bytes, 8U << 20);
}

TEST_P(StoreRecovery, StartUpTrimsToTheLowWatermarkLeastRecentlyUsedFirst) {
  std::vector<RandomSlab> slabs;
  {
    const auto store = Open();
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      slabs.push_back(MakeSlabOfSize(seed, 8192));
      ASSERT_TRUE(PutSlab(*store, slabs.back()).ok());
      ASSERT_TRUE(store->RecordUse(NameOf(slabs.back().meta), 1, 1000 + 10 - seed).ok());
    }
  }
  const uint64_t each = ChargedBytes(slabs[0].bytes.size());
  const auto store = Open({.budget_bytes = 10 * each, .low_watermark = 0.8, .now_s = 2000});
  EXPECT_EQ(store->startup_report().removed.at("trimmed"), 2U);
  EXPECT_FALSE(store->Stat(NameOf(slabs[9].meta)).ok());
  EXPECT_FALSE(store->Stat(NameOf(slabs[8].meta)).ok());
  EXPECT_TRUE(store->Stat(NameOf(slabs[7].meta)).ok());
  EXPECT_EQ(folder_.Files().size(), 8U);
}

TEST_P(StoreRecovery, ABadSlabIsNeverServedAndMovedAside) {
  const RandomSlab slab = MakeSlabOfSize(1, 2 << 20);
  const auto store = Open();
  ASSERT_TRUE(PutSlab(*store, slab).ok());
  std::string bytes = slab.bytes;
  bytes[bytes.size() - 5000] ^= 1;  // in the last piece: the head is sound
  Overwrite(PathOf(slab), bytes);
  events_.Take();
  const auto got = GetSlab(*store, NameOf(slab.meta));
  EXPECT_EQ(got.status().code(), absl::StatusCode::kDataLoss);
  const auto events = events_.Take();
  EXPECT_NE(
      std::find(events.begin(), events.end(), "quarantined " + NameOf(slab.meta).ToFileName()),
      events.end());
  EXPECT_EQ(GetSlab(*store, NameOf(slab.meta)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(folder_.Files().size(), 1U);
  EXPECT_TRUE(absl::StartsWith(folder_.Files()[0], "quarantine/"));
  EXPECT_TRUE(PutSlab(*store, slab).ok());
}

TEST_P(StoreRecovery, VerifyFindsTheBadOne) {
  const RandomSlab good = MakeRandomSlab({.seed = 1});
  const RandomSlab bad = MakeRandomSlab({.seed = 2});
  const auto store = Open();
  ASSERT_TRUE(PutSlab(*store, good).ok());
  ASSERT_TRUE(PutSlab(*store, bad).ok());
  std::string bytes = bad.bytes;
  bytes[bytes.size() - 30] ^= 1;
  Overwrite(PathOf(bad), bytes);
  uint64_t read = 0;
  const auto count = [&](uint64_t piece) {
    read += piece;
    return absl::OkStatus();
  };
  EXPECT_TRUE(store->Verify(NameOf(good.meta), count).ok());
  EXPECT_EQ(read, good.meta.header.payload_bytes);
  EXPECT_EQ(store->Verify(NameOf(bad.meta), count).code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(store->Stat(NameOf(bad.meta)).ok());
}

TEST_P(StoreRecovery, AFileThatSomebodyElseCutOrRemovedIsAFailedReadAndNoCrash) {
  const RandomSlab slab = MakeSlabOfSize(1, 4 << 20);
  const auto store = Open();
  ASSERT_TRUE(PutSlab(*store, slab).ok());
  auto reader = store->BeginGet(NameOf(slab.meta), {});
  ASSERT_TRUE(reader.ok());
  std::filesystem::resize_file(PathOf(slab), 1 << 20);
  absl::Status status;
  while (status.ok() && (*reader)->next_bytes() > 0) {
    std::string chunk((*reader)->next_bytes(), '\0');
    status = (*reader)->ReadNext(absl::MakeSpan(chunk));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  reader->reset();
  EXPECT_EQ(GetSlab(*store, NameOf(slab.meta)).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(PutSlab(*store, slab).ok());
  std::filesystem::remove(PathOf(slab));
  EXPECT_EQ(GetSlab(*store, NameOf(slab.meta)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(*testing::DeleteSlab(*store, NameOf(slab.meta)));
  EXPECT_EQ(store->usage().used_bytes, 0U);
}

TEST_P(StoreRecovery, AnUnknownFileOfTheNameIsAdoptedIfItIsSoundAndElseReplaced) {
  const RandomSlab sound = MakeRandomSlab({.seed = 1});
  const RandomSlab bad = MakeRandomSlab({.seed = 2});
  const auto store = Open();
  Overwrite(PathOf(sound), sound.bytes);
  Overwrite(PathOf(bad), bad.bytes.substr(7));
  const auto adopted = PutSlab(*store, sound);
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_TRUE(adopted->adopted);
  const auto replaced = PutSlab(*store, bad);
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_FALSE(replaced->adopted);
  EXPECT_EQ(*GetSlab(*store, NameOf(bad.meta)), bad.bytes);
}

INSTANTIATE_TEST_SUITE_P(Tiers, StoreRecovery, ::testing::Values("ram_file", "disk"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvmesh::blob
