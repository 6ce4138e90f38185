// Nothing that is not exactly what was written is ever taken for a slab.
#include <gtest/gtest.h>

#include <string>

#include "common/base/error_info.h"
#include "common/slab/reader.h"
#include "common/slab/stream_verifier.h"
#include "tests/testing/random_slab.h"

namespace kvmesh::slab {
namespace {

using testing::MakeRandomSlab;

absl::Status ReadEverything(const std::string& bytes) {
  const MemorySource source(bytes);
  const auto reader = SlabReader::Open(source);
  return reader.ok() ? reader->VerifyPayload() : reader.status();
}

absl::Status StreamEverything(const std::string& bytes) {
  SlabStreamVerifier verifier(bytes.size());
  const absl::Status appended = verifier.Append(bytes);
  return appended.ok() ? verifier.Finish() : appended;
}

bool IsUsageByte(size_t at) {
  return (at >= kHitCountOffset && at < kHitCountOffset + 4) ||
         (at >= kLastUsedOffset && at < kLastUsedOffset + 8);
}

TEST(SlabCorruption, AnyFlippedBitOutsideTheUsageFieldsIsFound) {
  const std::string good =
      MakeRandomSlab({.layers = {1, 4}, .token_count = 20, .mixed_kinds = true}).bytes;
  ASSERT_TRUE(ReadEverything(good).ok());
  std::string bytes = good;
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      // One bit of each byte through the slower reader; all of them through the stream verifier.
      bytes[at] = static_cast<char>(good[at] ^ (1 << bit));
      EXPECT_EQ(StreamEverything(bytes).ok(), IsUsageByte(at)) << "byte " << at << " bit " << bit;
      if (bit == static_cast<int>(at % 8)) {
        EXPECT_EQ(ReadEverything(bytes).ok(), IsUsageByte(at)) << "byte " << at << " bit " << bit;
      }
    }
    bytes[at] = good[at];
  }
}

TEST(SlabCorruption, TruncationAtEveryLengthIsFound) {
  const std::string good = MakeRandomSlab({.layers = {0, 2}, .token_count = 9}).bytes;
  for (size_t length = 0; length < good.size(); ++length) {
    const absl::Status status = ReadEverything(good.substr(0, length));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << length;
    EXPECT_FALSE(StreamEverything(good.substr(0, length)).ok()) << length;
  }
  EXPECT_EQ(ReasonOf(ReadEverything(good + 'x')), defect::kTruncated);
}

TEST(SlabCorruption, TheReasonSaysWhatTheFileIsNot) {
  std::string bytes = MakeRandomSlab({}).bytes;
  EXPECT_EQ(ReasonOf(ReadEverything("")), defect::kTruncated);
  EXPECT_EQ(ReasonOf(ReadEverything("GGUF and so on")), defect::kForeign);
  EXPECT_EQ(ReasonOf(ReadEverything(bytes.substr(0, bytes.size() - 1))), defect::kTruncated);
  bytes[3] = 1;
  const absl::Status old = ReadEverything(bytes);
  EXPECT_EQ(ReasonOf(old), defect::kVersion);
  EXPECT_NE(std::string(old.message()).find("version 1"), std::string::npos);
  bytes[3] = 3;
  EXPECT_EQ(ReasonOf(ReadEverything(bytes)), defect::kVersion);
  bytes[3] = 2;
  bytes[5000] = static_cast<char>(bytes[5000] ^ 1);
  EXPECT_EQ(ReasonOf(ReadEverything(bytes)), defect::kCorrupt);
}

}  // namespace
}  // namespace kvmesh::slab
