// Numerics ids: what a processor offers, by default and by name, and what it refuses.
#include "services/shard/engine/numerics.h"

#include <string>
#include <vector>

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
constexpr CpuFeatures WithVnni() {
  CpuFeatures cpu = kWithAvx512;
  cpu.avx512_vnni = true;
  return cpu;
}

TEST(Numerics, RoundingTo16BitsIsTheDefaultAndFma32IsThereToo) {
  const std::vector<Numerics> found = NumericsOfThisMachine(kWithAvx2);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].id, "round16");
  EXPECT_TRUE(found[0].rounds_to_16);
  EXPECT_EQ(found[1].id, "fma32");
  EXPECT_FALSE(found[1].rounds_to_16);
  EXPECT_EQ(NumericsNamed("", kWithAvx2)->id, "round16");
  EXPECT_TRUE(NumericsNamed("", kWithAvx2)->rounds_to_16);
  EXPECT_FALSE(NumericsNamed("fma32", kWithAvx2)->rounds_to_16);
}

TEST(Numerics, TheFastestSetComputesAnIdAndUnlikeProcessorsShareIt) {
  for (const char* id : {"round16", "fma32"}) {
    EXPECT_EQ(NumericsNamed(id, kWithAvx2)->set, InstructionSet::kAvx2);
    EXPECT_EQ(NumericsNamed(id, kWithAvx512)->set, InstructionSet::kAvx512);
    EXPECT_EQ(NumericsNamed(id, WithVnni())->set, InstructionSet::kAvx512Vnni);
    EXPECT_EQ(NumericsNamed(id, kWithAvx2)->id, id);
    EXPECT_EQ(NumericsNamed(id, WithVnni())->id, id);
  }
}

TEST(Numerics, ASetCanBeForcedAndKeepsTheId) {
  const auto forced = NumericsNamed("fma32:avx2", WithVnni());
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
  EXPECT_EQ(NumericsNamed("round16:avx512vnni", kWithAvx512).status().message(),
            "numerics \"round16:avx512vnni\" needs avx512_vnni, which this processor lacks");
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
  for (const char* name : {"fma", "fma32:", "fma32:sse", "FMA32", "round16 ", ":avx2"}) {
    const absl::Status status = NumericsNamed(name, WithVnni()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("known are round16, round16:avx2, round16:avx512, round16:avx512vnni, "
                          "fma32, fma32:avx2, fma32:avx512, fma32:avx512vnni"));
  }
}

TEST(Numerics, EverySetThisProcessorHasCanBeForced) {
  for (const InstructionSet set : kInstructionSets) {
    const auto forced = NumericsNamed("round16:" + std::string(NameOf(set)));
    EXPECT_EQ(forced.ok(), MissingFeatures(set).empty()) << NameOf(set);
  }
}

}  // namespace
}  // namespace kvmesh::shard
