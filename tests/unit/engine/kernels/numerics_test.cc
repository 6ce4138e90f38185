// Numerics ids: what a processor offers, by default and by name, and what it refuses.
#include "services/shard/engine/numerics.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvmesh::shard {
namespace {

using ::testing::HasSubstr;

constexpr CpuFeatures kWithAvx2 = {.avx2 = true, .fma = true, .f16c = true};
constexpr CpuFeatures kWithAvx512 = {.avx2 = true,
                                     .fma = true,
                                     .f16c = true,
                                     .avx512f = true,
                                     .avx512bw = true,
                                     .avx512dq = true,
                                     .avx512vl = true};

TEST(Numerics, TheFastestSetComputesTheDefault) {
  ASSERT_EQ(NumericsOfThisMachine(kWithAvx512).size(), 1u);
  EXPECT_EQ(NumericsOfThisMachine(kWithAvx512)[0].id, "fma32");
  EXPECT_EQ(NumericsOfThisMachine(kWithAvx512)[0].set, InstructionSet::kAvx512);
  EXPECT_EQ(NumericsNamed("", kWithAvx512)->set, InstructionSet::kAvx512);
  EXPECT_EQ(NumericsNamed("fma32", kWithAvx512)->set, InstructionSet::kAvx512);
}

TEST(Numerics, UnlikeProcessorsShareAnId) {
  EXPECT_EQ(NumericsNamed("", kWithAvx2)->id, NumericsNamed("", kWithAvx512)->id);
  EXPECT_EQ(NumericsNamed("", kWithAvx2)->set, InstructionSet::kAvx2);
}

TEST(Numerics, ASetCanBeForcedAndKeepsTheId) {
  const auto forced = NumericsNamed("fma32:avx2", kWithAvx512);
  ASSERT_TRUE(forced.ok());
  EXPECT_EQ(forced->id, "fma32");
  EXPECT_EQ(forced->set, InstructionSet::kAvx2);
}

TEST(Numerics, ASetThatIsMissingIsRefusedWithWhatIsMissing) {
  const absl::Status status = NumericsNamed("fma32:avx512", kWithAvx2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "numerics \"fma32:avx512\" needs avx512f, avx512bw, avx512dq, avx512vl, which this "
            "processor lacks");
  CpuFeatures one_short = kWithAvx512;
  one_short.avx512dq = false;
  EXPECT_THAT(std::string(NumericsNamed("fma32:avx512", one_short).status().message()),
              HasSubstr("needs avx512dq, which"));
}

TEST(Numerics, AProcessorWithoutAnySetOffersNothingAndSaysWhy) {
  EXPECT_TRUE(NumericsOfThisMachine({}).empty());
  EXPECT_THAT(std::string(NumericsNamed("", {}).status().message()),
              HasSubstr("needs avx2, fma, f16c, which this processor lacks"));
}

TEST(Numerics, UnknownNamesAreRefusedWithTheKnownOnes) {
  for (const char* name : {"fma", "fma32:", "fma32:sse", "FMA32", "fma32 "}) {
    const absl::Status status = NumericsNamed(name, kWithAvx512).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("known are fma32, fma32:avx2, fma32:avx512"));
  }
}

TEST(Numerics, EverySetThisProcessorHasCanBeForced) {
  for (const InstructionSet set : kInstructionSets) {
    const auto forced = NumericsNamed("fma32:" + std::string(NameOf(set)));
    EXPECT_EQ(forced.ok(), MissingFeatures(set).empty()) << NameOf(set);
  }
}

}  // namespace
}  // namespace kvmesh::shard
