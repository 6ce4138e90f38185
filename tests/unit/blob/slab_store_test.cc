// What every tier does, by one suite for all of them.
#include "services/blob/tiers/slab_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <thread>
#include <vector>

#include "common/base/error_info.h"
#include "services/blob/tiers/file_system.h"
#include "tests/testing/store_fixture.h"

namespace kvmesh::blob {
namespace {

using testing::DeleteSlab;
using testing::GetSlab;
using testing::MakeRandomSlab;
using testing::MakeSlabOfSize;
using testing::PutSlab;
using testing::RandomSlab;

class SlabStoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  SlabStoreTest() : folder_(GetParam()) {}

  void Open(StoreOptions options = {.budget_bytes = 64 << 20}) {
    store_.reset();
    auto store = testing::OpenStore(GetParam(), folder_.path(), options, *files_, events_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  bool has_files() const { return GetParam() != "ram"; }

  std::unique_ptr<FileSystem> files_ = MakePosixFileSystem();
  testing::TempFolder folder_;
  testing::RecordedEvents events_;
  std::unique_ptr<SlabStore> store_;
};

TEST_P(SlabStoreTest, WhatWasPutComesBackByteForByte) {
  Open();
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const RandomSlab slab = MakeRandomSlab(
        {.seed = seed, .layers = {0, 7}, .token_count = 90, .mixed_kinds = seed % 2 == 0});
    const auto put = PutSlab(*store_, slab);
    ASSERT_TRUE(put.ok()) << put.status();
    EXPECT_FALSE(put->adopted);
    const auto got = GetSlab(*store_, NameOf(slab.meta));
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, slab.bytes);
  }
  EXPECT_EQ(store_->usage().slabs, 5U);
  EXPECT_EQ(store_->usage().in_flight_bytes, 0U);
}

TEST_P(SlabStoreTest, ChosenLayersComeWithHeadAndTrailer) {
  Open();
  const RandomSlab slab = MakeRandomSlab({.layers = {4, 8}, .token_count = 300, .row_values = 300});
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  Selection selection{.kind = Selection::Kind::kLayers,
                      .layers = {{.layer = 6}, {.layer = 5, .tokens = 16}}};
  const auto get = store_->BeginGet(NameOf(slab.meta), selection);
  ASSERT_TRUE(get.ok()) << get.status();
  std::string expected;
  for (const ByteRange& range : (*get)->ranges())
    expected += slab.bytes.substr(range.offset, range.length);
  const auto got = GetSlab(*store_, NameOf(slab.meta), selection);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(*got, expected);
  EXPECT_LT(got->size(), slab.bytes.size());
  EXPECT_EQ(GetSlab(*store_, NameOf(slab.meta),
                    {.kind = Selection::Kind::kLayers, .layers = {{.layer = 8}}})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(SlabStoreTest, NothingOfAPutIsSeenBeforeItsEnd) {
  Open();
  const RandomSlab slab = MakeRandomSlab({});
  auto begun = store_->BeginPut(testing::HeaderOf(slab.meta));
  ASSERT_TRUE(begun.ok());
  ASSERT_TRUE(begun->put->Append({slab.bytes}).ok());
  EXPECT_EQ(store_->Stat(NameOf(slab.meta)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetSlab(*store_, NameOf(slab.meta)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store_->List(std::nullopt, 10).slabs.empty());
  EXPECT_GT(store_->usage().in_flight_bytes, 0U);
  begun->put.reset();
  EXPECT_EQ(store_->usage().occupied(), 0U);
  EXPECT_EQ(store_->transfers(), 0U);
  EXPECT_TRUE(folder_.Files().empty());
}

TEST_P(SlabStoreTest, ARepeatedPutIsAdopted) {
  Open();
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  const auto again = PutSlab(*store_, slab);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->adopted);
  EXPECT_EQ(store_->usage().slabs, 1U);
}

TEST_P(SlabStoreTest, ANameIsNeverUsedForAnotherSlab) {
  Open();
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  PutHeader other = testing::HeaderOf(slab.meta);
  other.payload_crc32c ^= 1;
  EXPECT_EQ(store_->BeginPut(other).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(SlabStoreTest, TwoWritesOfOneRangeLiveSideBySide) {
  Open();
  const RandomSlab first = MakeRandomSlab({.seed = 8});
  WriteId other = first.meta.write_id;
  *other.mutable_data() ^= 1;
  const RandomSlab second = testing::WithWriteId(first, other);
  ASSERT_TRUE(PutSlab(*store_, first).ok());
  ASSERT_TRUE(PutSlab(*store_, second).ok());
  EXPECT_TRUE(*DeleteSlab(*store_, NameOf(first.meta)));
  EXPECT_TRUE(GetSlab(*store_, NameOf(second.meta)).ok());
  EXPECT_FALSE(*DeleteSlab(*store_, NameOf(first.meta)));
}

TEST_P(SlabStoreTest, WhatIsNoSlabOrNotTheAnnouncedOneIsRefused) {
  Open();
  const RandomSlab slab = MakeRandomSlab({});
  const auto put = [&](const PutHeader& header, const std::string& bytes) {
    auto begun = store_->BeginPut(header);
    if (!begun.ok()) return begun.status();
    const absl::Status appended = begun->put->Append({bytes});
    return appended.ok() ? begun->put->Finish().status() : appended;
  };
  const PutHeader header = testing::HeaderOf(slab.meta);
  std::string flipped = slab.bytes;
  flipped[flipped.size() / 2] ^= 1;
  EXPECT_EQ(put(header, flipped).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(put(header, slab.bytes.substr(1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(put(header, slab.bytes.substr(0, slab.bytes.size() - 1)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(put(header, slab.bytes + "x").code(), absl::StatusCode::kInvalidArgument);
  PutHeader other = header;
  other.name.layers.end += 1;
  EXPECT_EQ(put(other, slab.bytes).code(), absl::StatusCode::kInvalidArgument);
  other = header;
  *other.tokens_sha256.mutable_data() ^= 1;
  EXPECT_EQ(put(other, slab.bytes).code(), absl::StatusCode::kInvalidArgument);
  other = header;
  other.payload_crc32c ^= 1;
  EXPECT_EQ(put(other, slab.bytes).code(), absl::StatusCode::kInvalidArgument);
  other = header;
  other.file_bytes = 79;
  EXPECT_EQ(put(other, slab.bytes).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->usage().occupied(), 0U);
  EXPECT_TRUE(folder_.Files().empty());
  EXPECT_TRUE(put(header, slab.bytes).ok());
}

TEST_P(SlabStoreTest, TheBudgetHoldsBytesInFlight) {
  const RandomSlab slab = MakeSlabOfSize(1, 1 << 20);
  const uint64_t charged = ChargedBytes(slab.bytes.size());
  Open({.budget_bytes = 2 * charged});
  ASSERT_TRUE(PutSlab(*store_, MakeSlabOfSize(2, 1 << 20)).ok());
  auto second = store_->BeginPut(testing::HeaderOf(slab.meta));
  ASSERT_TRUE(second.ok()) << second.status();
  const RandomSlab third = MakeSlabOfSize(3, 4096);
  EXPECT_EQ(ReasonOf(store_->BeginPut(testing::HeaderOf(third.meta)).status()), reason::kNoRoom);
  second->put.reset();
  EXPECT_TRUE(PutSlab(*store_, third).ok());
  Open({.budget_bytes = charged - 1});
  EXPECT_EQ(ReasonOf(store_->BeginPut(testing::HeaderOf(slab.meta)).status()), reason::kTooLarge);
}

TEST_P(SlabStoreTest, TransfersBeyondTheLimitAreRefusedWithADelay) {
  Open({.budget_bytes = 64 << 20, .transfers_max = 2});
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  auto first = store_->BeginGet(NameOf(slab.meta), {});
  auto second = store_->BeginPut(testing::HeaderOf(MakeRandomSlab({.seed = 2}).meta));
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status refused = store_->BeginGet(NameOf(slab.meta), {}).status();
  EXPECT_EQ(ReasonOf(refused), reason::kQueueFull);
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  const auto third = store_->BeginPut(testing::HeaderOf(MakeRandomSlab({.seed = 3}).meta));
  EXPECT_EQ(ReasonOf(third.status()), reason::kQueueFull);
  first->reset();
  EXPECT_TRUE(GetSlab(*store_, NameOf(slab.meta)).ok());
}

TEST_P(SlabStoreTest, ADeleteHidesTheSlabAtOnceAndAnswersWithTheLastReader) {
  Open();
  const RandomSlab slab = MakeSlabOfSize(1, 3 << 20);
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  auto reader = store_->BeginGet(NameOf(slab.meta), {});
  ASSERT_TRUE(reader.ok());
  int answers = 0;
  store_->Delete(NameOf(slab.meta),
                 [&](const absl::StatusOr<bool>& removed) { answers += removed.ok() && *removed; });
  store_->Delete(NameOf(slab.meta),
                 [&](const absl::StatusOr<bool>& removed) { answers += removed.ok() && *removed; });
  EXPECT_EQ(answers, 0);
  EXPECT_EQ(store_->Stat(NameOf(slab.meta)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(folder_.Files().empty());
  EXPECT_GT(store_->usage().used_bytes, 0U);
  std::string bytes;
  while ((*reader)->next_bytes() > 0) {
    std::string chunk((*reader)->next_bytes(), '\0');
    ASSERT_TRUE((*reader)->ReadNext(absl::MakeSpan(chunk)).ok());
    bytes += chunk;
  }
  EXPECT_EQ(bytes, slab.bytes);
  reader->reset();
  EXPECT_EQ(answers, 2);
  EXPECT_EQ(store_->usage().used_bytes, 0U);
  EXPECT_FALSE(*DeleteSlab(*store_, NameOf(slab.meta)));
}

TEST_P(SlabStoreTest, UseIsRewrittenInPlace) {
  Open();
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(PutSlab(*store_, slab).ok());
  ASSERT_TRUE(store_->RecordUse(NameOf(slab.meta), 77, 1800000000).ok());
  const auto got = GetSlab(*store_, NameOf(slab.meta));
  ASSERT_TRUE(got.ok()) << got.status();
  const slab::MemorySource source(*got);
  const auto reader = slab::SlabReader::Open(source);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->meta().header.hit_count, 77U);
  EXPECT_EQ(reader->meta().header.last_used_time_s, 1800000000U);
  EXPECT_EQ(store_->Stat(NameOf(slab.meta))->hit_count, 77U);
}

TEST_P(SlabStoreTest, ManyThreadsPutGetAndDeleteAtOnce) {
  Open({.budget_bytes = 256 << 20, .transfers_max = 64});
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 10; ++i) {
        const RandomSlab slab = MakeRandomSlab({.seed = 1 + t * 100 + i, .layers = {0, 2}});
        failures += !PutSlab(*store_, slab).ok();
        const auto got = GetSlab(*store_, NameOf(slab.meta));
        failures += !got.ok() || *got != slab.bytes;
        if (i % 2 == 0) failures += !DeleteSlab(*store_, NameOf(slab.meta)).ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(store_->usage().slabs, 20U);
  EXPECT_EQ(store_->transfers(), 0U);
}

TEST_P(SlabStoreTest, FilesAreForTheOwnerAlone) {
  if (!has_files()) return;
  Open();
  ASSERT_TRUE(PutSlab(*store_, MakeRandomSlab({})).ok());
  ASSERT_EQ(folder_.Files().size(), 1U);
  struct stat info {};
  ASSERT_EQ(stat((folder_.path() + "/" + folder_.Files()[0]).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  ASSERT_EQ(stat(folder_.path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
}

TEST_P(SlabStoreTest, AFolderInUseIsRefused) {
  if (!has_files()) return;
  Open();
  const auto second =
      testing::OpenStore(GetParam(), folder_.path(), {.budget_bytes = 1 << 20}, *files_, events_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
}

INSTANTIATE_TEST_SUITE_P(Tiers, SlabStoreTest, ::testing::Values("ram", "ram_file", "disk"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvmesh::blob
