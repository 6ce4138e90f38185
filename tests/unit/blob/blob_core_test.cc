#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "common/base/error_info.h"
#include "services/blob/core/catalog.h"
#include "services/blob/core/slab_name.h"
#include "services/blob/core/transfer_gate.h"
#include "services/blob/core/transfer_plan.h"
#include "tests/testing/random_slab.h"

namespace kvmesh::blob {
namespace {

SlabName Name(char byte, char write = 'w') {
  return {.key = *Sha256Digest::FromBytes(std::string(32, byte), "key"),
          .layers = {0, 4},
          .write_id = *WriteId::FromBytes(std::string(16, write), "write_id")};
}

SlabInfo Info(const SlabName& name, uint64_t bytes, uint64_t last_used_s = 0) {
  return {.name = name, .file_bytes = bytes, .last_used_time_s = last_used_s};
}

TEST(SlabName, HasOneSpelling) {
  const std::string good = Name('\x0a').ToFileName();
  std::string key_hex;
  for (int i = 0; i < 32; ++i) key_hex += "0a";
  EXPECT_EQ(good, key_hex + ".0-4." + Name('a').write_id.ToHex());
  ASSERT_TRUE(SlabName::FromFileName(good).ok());
  EXPECT_EQ(*SlabName::FromFileName(good), Name('\x0a'));
  std::string capitals = good;
  capitals[1] = 'A';
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), std::string("../") + good, good + "/x",
        good + ".", good + std::string(1, '\0'), good.substr(1), capitals,
        good.substr(0, 64) + ".00-4." + good.substr(69),
        good.substr(0, 64) + ".+0-4." + good.substr(69),
        good.substr(0, 64) + ".4-4." + good.substr(69),
        good.substr(0, 64) + ".5-4." + good.substr(69),
        good.substr(0, 64) + ".0-4097." + good.substr(69),
        good.substr(0, 64) + ".0-." + good.substr(69),
        good.substr(0, 64) + ".-4." + good.substr(69),
        good.substr(0, 64) + ".0-99999999999." + good.substr(69)}) {
    EXPECT_FALSE(SlabName::FromFileName(bad).ok()) << bad;
  }
}

TEST(SlabName, PartsFromOutsideAreCheckedByField) {
  const std::string key(64, 'a');
  const std::string id(32, 'b');
  EXPECT_TRUE(SlabName::FromParts(key, {0, 4096}, id).ok());
  EXPECT_FALSE(SlabName::FromParts(key, {0, 4097}, id).ok());
  EXPECT_FALSE(SlabName::FromParts(key, {4, 4}, id).ok());
  EXPECT_FALSE(SlabName::FromParts(key.substr(1), {0, 1}, id).ok());
  EXPECT_FALSE(SlabName::FromParts(key + "aa", {0, 1}, id).ok());
  EXPECT_FALSE(SlabName::FromParts("../../../../etc/passwd", {0, 1}, id).ok());
  EXPECT_NE(std::string(SlabName::FromParts(key, {0, 1}, "b").status().message()).find("write_id"),
            std::string::npos);
}

TEST(Catalog, APutThatWouldPassTheBudgetIsRefusedAndOneThatFillsItIsNot) {
  Catalog catalog(3 * 4096);
  ASSERT_TRUE(catalog.BeginPut(Name(1), 4097).ok());  // counts for two pages
  const absl::Status refused = catalog.BeginPut(Name(2), 4097);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), reason::kNoRoom);
  EXPECT_EQ(ReasonOf(catalog.BeginPut(Name(2), 3 * 4096 + 1)), reason::kTooLarge);
  EXPECT_TRUE(catalog.BeginPut(Name(2), 4096).ok());
  EXPECT_EQ(catalog.usage().in_flight_bytes, 3 * 4096U);
  catalog.AbortPut(Name(1));
  EXPECT_TRUE(catalog.BeginPut(Name(3), 8192).ok());
}

TEST(Catalog, QuarantinedBytesCount) {
  Catalog catalog(2 * 4096);
  catalog.SetQuarantined(4096);
  EXPECT_FALSE(catalog.BeginPut(Name(1), 4097).ok());
  EXPECT_TRUE(catalog.BeginPut(Name(1), 4096).ok());
}

TEST(Catalog, ANameBelongsToOnePutAtATime) {
  Catalog catalog(1 << 20);
  ASSERT_TRUE(catalog.BeginPut(Name(1), 100).ok());
  EXPECT_EQ(ReasonOf(catalog.BeginPut(Name(1), 100)), "BEING_WRITTEN");
  EXPECT_TRUE(catalog.BeginPut(Name(1, 'x'), 100).ok());  // another write of the same range
  catalog.CommitPut(Info(Name(1), 100));
  EXPECT_EQ(catalog.BeginPut(Name(1), 100).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(catalog.usage().used_bytes, 4096U);
}

TEST(Catalog, ASlabThatIsReadIsForgottenWithItsLastReader) {
  Catalog catalog(1 << 20);
  catalog.AddFound(Info(Name(1), 100));
  ASSERT_TRUE(catalog.BeginRead(Name(1)).ok());
  ASSERT_TRUE(catalog.BeginRead(Name(1)).ok());
  EXPECT_EQ(catalog.BeginRemoval(Name(1)), Catalog::Removal::kStarted);
  EXPECT_EQ(catalog.BeginRemoval(Name(1)), Catalog::Removal::kInProgress);
  EXPECT_EQ(catalog.BeginRead(Name(1)).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(catalog.EndRemoval(Name(1)));
  EXPECT_EQ(catalog.usage().used_bytes, 4096U);
  EXPECT_EQ(ReasonOf(catalog.BeginPut(Name(1), 100)), "DELETING");
  EXPECT_FALSE(catalog.EndRead(Name(1)));
  EXPECT_TRUE(catalog.EndRead(Name(1)));
  EXPECT_EQ(catalog.usage().used_bytes, 0U);
  EXPECT_EQ(catalog.BeginRemoval(Name(1)), Catalog::Removal::kAbsent);
}

TEST(Catalog, ARemovalWaitsForThePutOfItsName) {
  Catalog catalog(1 << 20);
  ASSERT_TRUE(catalog.BeginPut(Name(1), 100).ok());
  ASSERT_TRUE(catalog.BeginPut(Name(2), 100).ok());
  EXPECT_EQ(catalog.OpenPuts().size(), 2U);
  EXPECT_FALSE(catalog.PutIsUnwanted(Name(1)));
  for (const SlabName& name : {Name(1), Name(2)}) {
    EXPECT_EQ(catalog.BeginRemoval(name), Catalog::Removal::kPutOpen);
    EXPECT_TRUE(catalog.PutIsUnwanted(name));
    EXPECT_EQ(ReasonOf(catalog.BeginPut(name, 100)), "DELETING");
  }
  // One never gets done; the other was too far.
  EXPECT_TRUE(catalog.AbortPut(Name(1)));
  EXPECT_EQ(catalog.BeginRemoval(Name(1)), Catalog::Removal::kAbsent);
  EXPECT_TRUE(catalog.CommitPut(Info(Name(2), 100)));
  EXPECT_EQ(catalog.BeginRead(Name(2)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(catalog.BeginRemoval(Name(2)), Catalog::Removal::kInProgress);
  EXPECT_TRUE(catalog.EndRemoval(Name(2)));
  EXPECT_EQ(catalog.usage().occupied(), 0U);
  EXPECT_TRUE(catalog.OpenPuts().empty());
}

TEST(Catalog, GivesBackWhatItWasTold) {
  Catalog catalog(1 << 20);
  const SlabInfo told = InfoOf(testing::MakeRandomSlab({.token_count = 100}).meta);
  ASSERT_FALSE(told.cut_points.empty());
  catalog.AddFound(told);
  const SlabInfo kept = *catalog.Find(told.name);
  EXPECT_EQ(std::tie(kept.name, kept.file_bytes, kept.token_count, kept.text_bytes),
            std::tie(told.name, told.file_bytes, told.token_count, told.text_bytes));
  EXPECT_EQ(std::tie(kept.creation_time_s, kept.last_used_time_s, kept.payload_crc32c),
            std::tie(told.creation_time_s, told.last_used_time_s, told.payload_crc32c));
  EXPECT_EQ(std::tie(kept.block_hash, kept.tail_hash, kept.reason, kept.tokens_sha256),
            std::tie(told.block_hash, told.tail_hash, told.reason, told.tokens_sha256));
  EXPECT_EQ(kept.key_namespace, told.key_namespace);
  EXPECT_EQ(kept.cut_points, told.cut_points);
}

TEST(NamespacePool, KeepsOneCopyUntilItsLastUserGoes) {
  NamespacePool pool;
  const slab::KeyNamespace one{.model_fp = "m", .quant = "q", .ctx_params = "c"};
  const slab::KeyNamespace other{.model_fp = "m", .quant = "q", .ctx_params = "d"};
  NamespacePool::Shared first = pool.Share(one);
  NamespacePool::Shared second = pool.Share(one);
  NamespacePool::Shared third = pool.Share(other);
  EXPECT_EQ(first, second);
  EXPECT_EQ(*third, other);
  EXPECT_EQ(pool.size(), 2U);
  pool.GiveBack(&first);
  EXPECT_EQ(*second, one);
  EXPECT_EQ(pool.size(), 2U);
  pool.GiveBack(&second);
  EXPECT_EQ(pool.size(), 1U);
}

TEST(Catalog, ACancelledRemovalLeavesTheSlab) {
  Catalog catalog(1 << 20);
  catalog.AddFound(Info(Name(1), 100));
  EXPECT_EQ(catalog.BeginRemoval(Name(1)), Catalog::Removal::kStarted);
  catalog.CancelRemoval(Name(1));
  EXPECT_TRUE(catalog.BeginRead(Name(1)).ok());
}

TEST(Catalog, TrimTakesTheLeastRecentlyUsedAndAFutureUseCountsAsNow) {
  Catalog catalog(1 << 20);
  catalog.AddFound(Info(Name(1), 4096, 50));
  catalog.AddFound(Info(Name(2), 4096, 10));
  catalog.AddFound(Info(Name(3), 4096, 999999));  // in the future: as if used at 60
  catalog.AddFound(Info(Name(4), 4096, 60));
  EXPECT_TRUE(catalog.PlanTrim(4 * 4096, 60).empty());
  EXPECT_EQ(catalog.PlanTrim(4 * 4096 - 1, 60), std::vector<SlabName>{Name(2)});
  EXPECT_EQ(catalog.PlanTrim(4096, 60), (std::vector<SlabName>{Name(2), Name(1), Name(3)}));
}

TEST(Catalog, PagesFollowOneAnother) {
  Catalog catalog(1 << 20);
  for (char i = 1; i <= 5; ++i) catalog.AddFound(Info(Name(i), 10));
  const Listing first = catalog.List(std::nullopt, 2);
  ASSERT_EQ(first.slabs.size(), 2U);
  EXPECT_FALSE(first.complete);
  const Listing second = catalog.List(first.slabs.back().name, 2);
  ASSERT_EQ(second.slabs.size(), 2U);
  EXPECT_EQ(second.slabs.front().name, Name(3));
  EXPECT_FALSE(second.complete);
  const Listing third = catalog.List(second.slabs.back().name, 2);
  EXPECT_EQ(third.slabs.size(), 1U);
  EXPECT_TRUE(third.complete);
  EXPECT_TRUE(catalog.List(std::nullopt, 5).complete);
  EXPECT_TRUE(catalog.List(Name(5), 2).complete);
}

TEST(Catalog, APageEndsBeforeTheSlabThatWouldPassItsCutPoints) {
  Catalog catalog(1 << 20);
  const auto add = [&](char id, size_t cut_points) {
    SlabInfo info = Info(Name(id), 10);
    info.cut_points.resize(cut_points);
    catalog.AddFound(info);
  };
  add(1, kListedCutPointsMax - 1);
  add(2, 1);
  add(3, 1);
  add(4, kListedCutPointsMax + 1);  // more than a page alone
  add(5, 0);
  std::vector<size_t> sizes;
  std::optional<SlabName> after;
  Listing page;
  while (!page.complete && sizes.size() < 10) {
    page = catalog.List(after, 1000);
    ASSERT_FALSE(page.slabs.empty());
    sizes.push_back(page.slabs.size());
    after = page.slabs.back().name;
  }
  EXPECT_EQ(sizes, (std::vector<size_t>{2, 1, 1, 1}));
}

TEST(TransferGate, TheOneBeyondTheLimitIsRefusedWithADelay) {
  TransferGate gate(2);
  EXPECT_TRUE(gate.Enter().ok());
  EXPECT_TRUE(gate.Enter().ok());
  const absl::Status refused = gate.Enter();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  gate.Leave();
  EXPECT_TRUE(gate.Enter().ok());
}

uint64_t Covered(const TransferPlan& plan) {
  uint64_t bytes = 0;
  for (const Chunk& chunk : plan.chunks) {
    EXPECT_LE(chunk.bytes.length, kChunkBytesMax);
    EXPECT_GT(chunk.bytes.length, 0U);
    bytes += chunk.bytes.length;
  }
  uint64_t ranges = 0;
  for (const ByteRange& range : plan.ranges) ranges += range.length;
  EXPECT_EQ(bytes, ranges);
  return bytes;
}

TEST(TransferPlan, TheWholeSlabIsOneRange) {
  const auto slab =
      testing::MakeRandomSlab({.layers = {0, 3}, .token_count = 700, .row_values = 600});
  const auto plan = PlanTransfer(slab.meta, {.kind = Selection::Kind::kWhole});
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->ranges.size(), 1U);
  EXPECT_EQ(Covered(*plan), slab.bytes.size());
}

TEST(TransferPlan, MetaIsHeadAndTrailer) {
  const auto slab = testing::MakeRandomSlab({});
  const auto plan = PlanTransfer(slab.meta, {.kind = Selection::Kind::kMeta});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(Covered(*plan), slab::kHeadBytes + slab.meta.meta_bytes + slab::kTrailerBytes);
}

TEST(TransferPlan, SmallLayersShareAChunk) {
  const auto slab = testing::MakeRandomSlab({.layers = {0, 50}, .token_count = 4});
  const auto plan = PlanTransfer(slab.meta, {.kind = Selection::Kind::kWhole});
  ASSERT_TRUE(plan.ok());
  EXPECT_LE(plan->chunks.size(), 4U);
}

TEST(TransferPlan, LayersThatAreNotThereAreRefused) {
  const auto slab = testing::MakeRandomSlab({.layers = {2, 5}});
  const auto code = [&](std::vector<LayerSelection> layers) {
    return PlanTransfer(slab.meta, {.kind = Selection::Kind::kLayers, .layers = std::move(layers)})
        .status()
        .code();
  };
  EXPECT_EQ(code({{.layer = 4}}), absl::StatusCode::kOk);
  EXPECT_EQ(code({{.layer = 4, .tokens = 10}, {.layer = 2}}), absl::StatusCode::kOk);
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{.layer = 5}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{.layer = 2, .tokens = 71}}), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvmesh::blob
