#include "common/slab/stream_verifier.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/testing/random_slab.h"

namespace kvmesh::slab {
namespace {

TEST(SlabStreamVerifier, TakesASlabCutAnywhere) {
  const auto slab =
      testing::MakeRandomSlab({.layers = {0, 4}, .token_count = 100, .mixed_kinds = true});
  for (size_t step :
       {size_t{1}, size_t{7}, size_t{55}, size_t{56}, size_t{4096}, size_t{1} << 20}) {
    SlabStreamVerifier verifier(slab.bytes.size());
    for (size_t at = 0; at < slab.bytes.size(); at += step) {
      EXPECT_FALSE(verifier.Finish().ok());
      ASSERT_TRUE(verifier.Append(absl::string_view(slab.bytes).substr(at, step)).ok()) << step;
    }
    EXPECT_TRUE(verifier.Finish().ok());
    ASSERT_NE(verifier.meta(), nullptr);
    EXPECT_EQ(verifier.meta()->key, slab.meta.key);
  }
}

TEST(SlabStreamVerifier, FindsABadPieceAsSoonAsItIsComplete) {
  auto slab = testing::MakeSlabOfSize(1, 4 * kPieceBytes);
  const uint64_t payload = slab.meta.payload_offset();
  slab.bytes[payload] = static_cast<char>(slab.bytes[payload] ^ 1);
  SlabStreamVerifier verifier(slab.bytes.size());
  EXPECT_TRUE(
      verifier.Append(absl::string_view(slab.bytes).substr(0, payload + kPieceBytes - 1)).ok());
  EXPECT_FALSE(
      verifier.Append(absl::string_view(slab.bytes).substr(payload + kPieceBytes - 1, 1)).ok());
  EXPECT_FALSE(verifier.Append("").ok());
}

TEST(SlabStreamVerifier, ASizeThatIsNotTheHeadersIsRefusedAtTheHead) {
  const auto slab = testing::MakeRandomSlab({});
  SlabStreamVerifier verifier(slab.bytes.size() + 1);
  EXPECT_TRUE(verifier.Append(absl::string_view(slab.bytes).substr(0, kHeadBytes - 1)).ok());
  EXPECT_FALSE(verifier.Append(absl::string_view(slab.bytes).substr(kHeadBytes - 1, 1)).ok());
}

}  // namespace
}  // namespace kvmesh::slab
