// A stored prefix joined to the rest of a prompt, with a vocabulary of a few pieces.
#include "services/router/core/seam.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/forward/key_namespace.h"
#include "common/slab/content_key.h"
#include "tests/testing/fake_tokenizer.h"

namespace kvmesh::router {
namespace {

using ::testing::ElementsAre;

// Ids of the pieces.
enum : uint32_t { kA, kB, kC, kAb, kBc, kEnd, kHigh, kHalf, kOtherHalf };

class SeamTest : public ::testing::Test {
 protected:
  absl::StatusOr<Seam> Join(std::vector<uint32_t> prompt, std::vector<uint32_t> stored) const {
    const PromptText text = MakePromptText(std::move(prompt), tokenizer_);
    std::string spelled;
    for (const uint32_t id : stored) spelled += tokenizer_.KeyBytes(id);
    return JoinSeam(tokenizer_, text, stored, spelled.size());
  }

  const testing::FakeTokenizer tokenizer_{
      {"a", "b", "c", "ab", "bc", "<end>", "\xff", "\xc3", "\xa9"},
      /*control=*/{kEnd}};
};

TEST_F(SeamTest, AtABoundaryOfTheCallersTokensTheSuffixIsTheCallersOwn) {
  const absl::StatusOr<Seam> seam = Join({kAb, kC, kEnd, kA}, {kAb, kC});
  ASSERT_TRUE(seam.ok()) << seam.status();
  EXPECT_THAT(seam->ids, ElementsAre(kAb, kC, kEnd, kA));
  EXPECT_EQ(seam->stored_tokens, 2u);
  EXPECT_EQ(seam->drifted_tokens, 0u);
}

TEST_F(SeamTest, OtherIdsOfTheSameBytesAreDriftOfSoManyTokens) {
  const absl::StatusOr<Seam> seam = Join({kAb, kC, kEnd, kA}, {kA, kB});
  ASSERT_TRUE(seam.ok()) << seam.status();
  EXPECT_THAT(seam->ids, ElementsAre(kA, kB, kC, kEnd, kA));
  EXPECT_EQ(seam->drifted_tokens, 2u);
}

TEST_F(SeamTest, InsideATokenTheRestUpToTheNextControlTokenIsTokenisedAnew) {
  // "abc<end>bc": the caller has a, bc; stored is ab.
  const absl::StatusOr<Seam> seam = Join({kA, kBc, kBc, kEnd, kBc}, {kAb});
  ASSERT_TRUE(seam.ok()) << seam.status();
  // Bytes "c" and "bc" by the tokenizer, then the caller's own, whole.
  EXPECT_THAT(seam->ids, ElementsAre(kAb, kC, kB, kC, kEnd, kBc));
  EXPECT_EQ(seam->drifted_tokens, 4u);
}

TEST_F(SeamTest, AFullHitHasNoSuffix) {
  const absl::StatusOr<Seam> seam = Join({kAb, kC}, {kA, kBc});
  ASSERT_TRUE(seam.ok()) << seam.status();
  EXPECT_THAT(seam->ids, ElementsAre(kA, kBc));
  EXPECT_EQ(seam->stored_tokens, 2u);
  EXPECT_EQ(seam->drifted_tokens, 2u);
}

TEST_F(SeamTest, IdsThatSpellOtherBytesAreABadSlab) {
  const PromptText prompt = MakePromptText({kA, kB}, tokenizer_);
  const std::vector<uint32_t> other = {kC};
  const std::vector<uint32_t> longer = {kA, kB};
  EXPECT_TRUE(absl::IsDataLoss(JoinSeam(tokenizer_, prompt, other, 1).status()));
  EXPECT_TRUE(absl::IsDataLoss(JoinSeam(tokenizer_, prompt, longer, 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(JoinSeam(tokenizer_, prompt, longer, 3).status()));
}

TEST_F(SeamTest, TextThatSpellsAControlTokenIsNotTheControlToken) {
  const testing::FakeTokenizer tokenizer({"<", "e", ">", "<e>"}, {3});
  const PromptText typed = MakePromptText({0, 1, 2}, tokenizer);
  const PromptText control = MakePromptText({3}, tokenizer);
  EXPECT_EQ(typed.text.text(), "<e>");
  EXPECT_EQ(control.text.text(), absl::string_view("\xff\x01\x03\x00\x00\x00", 6));
}

TEST_F(SeamTest, ARawFfByteTravelsThroughTheEscape) {
  // The caller has one piece "b\xff"; stored is "b".
  const testing::FakeTokenizer tokenizer({"b", "\xff", "b\xff"});
  const PromptText prompt = MakePromptText({2}, tokenizer);
  EXPECT_EQ(prompt.text.text(), absl::string_view("b\xff\x00", 3));
  const std::vector<uint32_t> stored = {0};
  const absl::StatusOr<Seam> seam = JoinSeam(tokenizer, prompt, stored, 1);
  ASSERT_TRUE(seam.ok()) << seam.status();
  EXPECT_THAT(seam->ids, ElementsAre(0u, 1u));
}

TEST_F(SeamTest, ARestThatNoTokensSpellIsNoSeam) {
  const testing::FakeTokenizer tokenizer({"b", "bz"});  // nothing spells "z"
  const PromptText prompt = MakePromptText({1}, tokenizer);
  const std::vector<uint32_t> stored = {0};
  EXPECT_TRUE(absl::IsFailedPrecondition(JoinSeam(tokenizer, prompt, stored, 1).status()));
}

TEST(KeyText, ABoundaryLiesBehindWholeCharactersOnly) {
  const testing::FakeTokenizer tokenizer({"a", "\xc3", "\xa9", ""});
  KeyText text;
  text.Append(std::vector<uint32_t>{0, 1, 2, 3}, tokenizer);
  EXPECT_FALSE(text.IsBoundary(0));
  EXPECT_TRUE(text.IsBoundary(1));
  EXPECT_FALSE(text.IsBoundary(2));
  EXPECT_TRUE(text.IsBoundary(3));
  EXPECT_TRUE(text.IsBoundary(4));
  EXPECT_EQ(text.BoundaryAtOrBefore(2), 1u);
  EXPECT_EQ(text.BoundaryAtOrBefore(0), 0u);
}

TEST(PrefixKeys, AreTheContentKeysInWhateverOrderTheyAreAsked) {
  forward::CacheNamespace cache_namespace{.quant = "q"};
  PrefixKeys keys(cache_namespace);
  const std::string text(3000, 'x');
  for (const uint64_t length : {10u, 2500u, 1024u, 3000u}) {
    EXPECT_EQ(keys.At(text, length),
              slab::ContentKey(forward::KeyNamespaceOf(cache_namespace), text.substr(0, length)));
  }
}

}  // namespace
}  // namespace kvmesh::router
