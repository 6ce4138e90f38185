#include "services/meta/core/lookup_query.h"

#include <gtest/gtest.h>

#include <string>

namespace kvmesh::meta {
namespace {

const slab::KeyNamespace kNamespace = {std::string(32, 'm'), "q4_1/f16", std::string(32, 'c')};

std::string Text(size_t bytes) {
  std::string text;
  text.reserve(bytes);
  for (size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>((i * 131) >> 3));
  return text;
}

TEST(LookupQuery, NamesEveryPrefixAsASlabDoes) {
  const std::string text = Text(3 * 1024 + 17);
  const LookupQuery query(kNamespace, text);
  ASSERT_EQ(query.blocks(), 3U);
  for (const size_t bytes : {0, 1, 1023, 1024, 1025, 2047, 2048, 3071, 3072, 3089}) {
    const std::string prefix = text.substr(0, bytes);
    const auto blocks = static_cast<uint32_t>(bytes / 1024);
    const auto tail_bytes = static_cast<uint32_t>(bytes % 1024);
    EXPECT_EQ(query.BlockHash(blocks), slab::BlockHash(kNamespace, prefix)) << bytes;
    EXPECT_EQ(query.Key(blocks, tail_bytes), slab::ContentKey(kNamespace, prefix)) << bytes;
    std::vector<uint32_t> hashes(tail_bytes + 1);
    query.TailHashes(blocks, absl::MakeSpan(hashes));
    EXPECT_EQ(hashes.back(), slab::TailHash(prefix)) << bytes;
  }
}

TEST(LookupQuery, ATailIsShorterThanABlock) {
  for (const size_t bytes : {0, 1, 1023, 1024, 1025, 2048}) {
    const std::string text = Text(bytes);
    const LookupQuery query(kNamespace, text);
    for (uint32_t blocks = 0; blocks < query.blocks(); ++blocks) {
      EXPECT_EQ(query.TailBytes(blocks), 1023U) << bytes;
    }
    EXPECT_EQ(query.TailBytes(query.blocks()), bytes % 1024) << bytes;
  }
}

TEST(LookupQuery, HasNothingInCommonWithOneOfAnotherNamespace) {
  const std::string text = Text(1500);
  const LookupQuery query(kNamespace, text);
  slab::KeyNamespace other_model = kNamespace;
  other_model.model_fp[31] ^= 1;
  slab::KeyNamespace other_quant = kNamespace;
  other_quant.quant = "q4_1/f32";
  slab::KeyNamespace other_tenant = kNamespace;
  other_tenant.ctx_params[0] ^= 1;
  // The same bytes, but another field ends with some of them.
  const slab::KeyNamespace shifted = {kNamespace.model_fp + "q", "4_1/f16", kNamespace.ctx_params};
  for (const auto& other : {other_model, other_quant, other_tenant, shifted}) {
    const LookupQuery of_other(other, text);
    for (uint32_t blocks = 0; blocks <= 1; ++blocks) {
      EXPECT_NE(query.BlockHash(blocks), of_other.BlockHash(blocks));
      EXPECT_NE(query.Key(blocks, 0), of_other.Key(blocks, 0));
    }
  }
}

}  // namespace
}  // namespace kvmesh::meta
