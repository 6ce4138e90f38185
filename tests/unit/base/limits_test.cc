#include "common/base/limits.h"

#include <gtest/gtest.h>

namespace kvmesh::limits {
namespace {

TEST(ChunkTokens, IsTheSmallerOf512AndWhatEightMebibytesHold) {
  EXPECT_EQ(ChunkTokens(576), 512u);
  EXPECT_EQ(ChunkTokens(4096), 512u);
  EXPECT_EQ(ChunkTokens(4097), 511u);
  EXPECT_EQ(ChunkTokens(8192), 256u);
}

TEST(ChunkTokens, IsNeverZero) {
  EXPECT_EQ(ChunkTokens(1u << 30), 1u);
  EXPECT_EQ(ChunkTokens(0), 512u);
}

}  // namespace
}  // namespace kvmesh::limits
